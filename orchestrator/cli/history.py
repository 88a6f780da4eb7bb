"""A run folder, here or elsewhere, read for a page about the run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator import contract
from orchestrator.backends.base import State
from orchestrator.backends.record import RECORD_FILE
from orchestrator.backends.sweeps import CANCEL_FILE
from orchestrator.cli.reading import SMALL_BYTES, Reading
from orchestrator.errors import OrchestrateError
from orchestrator.goodput import intervals, read_goodput
from orchestrator.report.clean import Mask, secret_values, tidy
from orchestrator.report.files import Attempt, Run, parsed
from orchestrator.report.times import Times
from orchestrator.report.told import Told, count

if TYPE_CHECKING:
    from orchestrator.backends.base import Handle
    from orchestrator.backends.runstore import RunStore
    from orchestrator.profiles import ClusterProfile

MAX_ATTEMPTS = 2000  # the newest
MAX_RENDERED = 40
MAX_ERRORS = 64
ATTEMPT_FILES = (contract.OWNER_FILE, contract.END_FILE, contract.OUTCOME_FILE,
                 f"{contract.HANGS_DIR}/verdict.json")  # fmt: skip
_EXPORT = re.compile(r"(?m)^\s*export ([A-Za-z_]\w*)=(.*)$")


def read_run(handle: Handle, store: RunStore, profile: ClusterProfile, whole: RunStore) -> Run:
    """All that a page shows of a run, without secrets. What cannot be read is left out, and said.

    Args:
        whole: the run folder with the job file: that of its sweep for an element, else the same.

    Raises BackendError or OSError if the folder itself cannot be reached.
    """
    names, own, above = store.list(), Reading(store), Reading(whole)
    record = _facts(own, RECORD_FILE)
    job = above.end(contract.JOB_FILE).decode(errors="replace")
    rendered = _rendered(own)
    receipt = _facts(own, contract.RECEIPT_FILE)
    plan = _facts(own, contract.PLAN_FILE) or _facts(above, contract.PLAN_FILE)
    trainer = parsed(rendered.get("trainer.json", ""))
    spec, has_defaults = _spec(job, profile)
    mask = Mask(frozenset(_secrets(job, rendered, receipt, plan, spec)))
    num_attempts, attempts = _attempts(own, record)
    told = Told()
    for line in own.lines(contract.METRICS_FILE):
        told.feed(line)
    ledger = own.lines(contract.LEDGER_FILE)
    return Run(
        name=handle.run,
        told=told,
        mask=mask,
        job=mask(job),
        rendered={name: mask(text) for name, text in rendered.items()},
        environment=_environment(rendered, mask),
        receipt=mask.data(receipt),
        trainer=mask.data(trainer),
        spec=mask.data(spec),
        has_defaults=has_defaults,
        plan=mask.data(plan),
        versions=_versions(own),
        attempts=attempts,
        num_attempts=num_attempts,
        times=Times.read(intervals(ledger)),
        goodput=read_goodput(ledger),
        is_done=contract.DONE_FILE in names,
        is_cancelled=_is_cancelled(own, record, receipt),
        left_out=_left_out(own, above),
    )


def _facts(reading: Reading, path: str) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    data = reading.end(path)
    found = parsed(data)
    if data and not found:
        reading.left_out[path] = "no JSON object with anything in it"
    return found


def _left_out(own: Reading, above: Reading) -> tuple[str, ...]:
    notes = {**above.left_out, **own.left_out}
    return tuple(f"{path}: {notes[path]}" for path in sorted(notes))


def _is_cancelled(own: Reading, record: Mapping[str, Any], receipt: Mapping[str, Any]) -> bool:
    """By what `status` goes by too: the supervisor's record, and with Slurm the id of the job that
    was cancelled."""
    if record.get("state") == State.CANCELLED.value:
        return True
    ids = receipt.get("ids")
    job = ids.get("job") if isinstance(ids, dict) else None
    return bool(job) and own.end(CANCEL_FILE).decode(errors="replace").strip() == str(job)


def _attempts(own: Reading, record: Mapping[str, Any]) -> tuple[int, tuple[Attempt, ...]]:
    """How many attempts there are; the newest by number, with what their files say."""
    names = own.names(contract.ATTEMPTS_DIR)
    known = sorted(int(n) for n in names if re.fullmatch("[1-9][0-9]{0,8}", n))
    numbers = known[-MAX_ATTEMPTS:]
    paths = [f"{contract.ATTEMPTS_DIR}/{n}/{name}" for n in numbers for name in ATTEMPT_FILES]
    files = [parsed(data) for data in own.ends(paths)]
    rows = zip(numbers, *(files[k :: len(ATTEMPT_FILES)] for k in range(4)), strict=True)
    found = [Attempt(number, *files) for number, *files in rows]
    if found:
        errors = () if found[-1].end else _errors(own, found[-1].number)
        found[-1] = replace(found[-1], errors=errors, is_newest=True)
    return len(known), tuple(_as_supervised(found, record))


def _as_supervised(attempts: list[Attempt], record: Mapping[str, Any]) -> Iterator[Attempt]:
    """The attempts of a local run: how one ended whose node 0 could not say so."""
    ended = record.get("ended")
    entries = (
        [entry for entry in ended if isinstance(entry, dict)] if isinstance(ended, list) else []
    )
    known = {count(entry, "attempt"): entry for entry in entries}
    for attempt in attempts:
        yield attempt if attempt.end else replace(attempt, end=known.get(attempt.number, {}))


def _errors(own: Reading, attempt: int) -> tuple[Mapping[str, Any], ...]:
    """What ranks of an attempt have reported."""
    folder = f"{contract.ATTEMPTS_DIR}/{attempt}/{contract.ERRORS_DIR}"
    names = [name for name in own.names(folder) if re.fullmatch(r"rank-\d+\.json", name)]
    paths = [f"{folder}/{name}" for name in names[:MAX_ERRORS]]
    reports = map(parsed, own.ends(paths))
    return tuple(report for report in reports if report)


def _rendered(own: Reading) -> dict[str, str]:
    """The rendered files, but for node.py, which is the same everywhere."""
    names = [name for name in own.names(contract.RENDERED_DIR) if name != "node.py"]
    names = names[:MAX_RENDERED]
    paths = [f"{contract.RENDERED_DIR}/{name}" for name in names]
    texts = (data.decode(errors="replace") for data in own.ends(paths))
    return {name: text for name, text in zip(names, texts, strict=True) if text}


def _environment(rendered: Mapping[str, str], mask: Mask) -> dict[str, str]:
    """The variables that rendered scripts and manifests set, by name."""
    found: dict[str, str] = {}
    for name, text in rendered.items():
        if name.endswith(".sh"):
            for match in _EXPORT.finditer(text):
                found[match[1]] = _unquoted(match[2])
        elif name.endswith(".yaml"):
            found.update(_variables(_data(text)))
    clean = (mask(f"{name}={value}") for name, value in found.items())
    parts = (line.partition("=") for line in clean)
    return {name: value for name, _, value in sorted(parts)}


def _unquoted(word: str) -> str:
    try:
        return " ".join(shlex.split(word))
    except ValueError:  # the value has a line break: the rest is in the file
        return word


def _variables(data: Any) -> Iterator[tuple[str, str]]:
    """Names and values in the lists `env` of a manifest."""
    if isinstance(data, dict):
        name, value = data.get("name"), data.get("value")
        if isinstance(name, str) and isinstance(value, str) and len(data) == 2:
            yield name, value
        for below in data.values():
            yield from _variables(below)
    elif isinstance(data, list):
        for below in data:
            yield from _variables(below)


def _secrets(job: str, rendered: Mapping[str, str], *read: Mapping[str, Any]) -> Iterator[str]:
    """All values in the job file, in what was rendered and in what was read that nobody should
    read."""
    for name, text in {"job.yaml": job, **rendered}.items():
        if name.endswith((".yaml", ".json")):
            yield from secret_values(_data(text))
        yield from secret_values(text)
    for data in read:
        yield from secret_values(data)


def _data(text: str) -> Any:
    """The data of a file that may be JSON or YAML; {} if it is neither."""
    from orchestrator.source import parse_document

    try:
        return tidy(json.loads(text))
    except (ValueError, RecursionError):
        pass
    try:
        return tidy(parse_document(text.encode(errors="replace"), "file").data)
    except (OrchestrateError, RecursionError):
        return {}


def _spec(job: str, profile: ClusterProfile) -> tuple[dict[str, Any], bool]:
    """The job file with its defaults, and True; as it stands where this version cannot read it."""
    from orchestrator.source import parse_document
    from orchestrator.spec import resolve_job

    try:
        document = parse_document(job.encode(errors="replace"), contract.JOB_FILE)
    except OrchestrateError:
        return {}, False
    try:
        spec = resolve_job(document, profile, []).spec
    except OrchestrateError:
        return dict(tidy(document.data)), False
    return spec.model_dump(mode="json", by_alias=True), True


def _versions(own: Reading) -> dict[str, str]:
    """Of the programs that wrote the newest checkpoint, by its manifest."""
    saved = [n for n in own.names(contract.CHECKPOINTS_DIR) if n.startswith("step-")]
    manifests = [f"{contract.CHECKPOINTS_DIR}/{name}/manifest.json" for name in saved[-3:]]
    found = map(parsed, own.ends(manifests, 16 * SMALL_BYTES))
    versions = [m["versions"] for m in found if isinstance(m.get("versions"), dict)]
    return {str(k): str(v) for k, v in versions[-1].items()} if versions else {}
