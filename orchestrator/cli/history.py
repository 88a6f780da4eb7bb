"""A run folder, here or elsewhere, read for a page about the run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator import contract
from orchestrator.cli.common import os_error_words
from orchestrator.cli.follow import Follower
from orchestrator.errors import BackendError, OrchestrateError
from orchestrator.goodput import intervals, read_goodput
from orchestrator.report.clean import secret_values, without_secrets
from orchestrator.report.files import Attempt, Run, parsed
from orchestrator.report.told import Told

if TYPE_CHECKING:
    from orchestrator.backends.base import Handle
    from orchestrator.backends.runstore import RunStore
    from orchestrator.profiles import ClusterProfile

SMALL_BYTES = 256 * 1024  # of a file that tells of an attempt
MAX_ATTEMPTS = 2000  # the newest
MAX_RENDERED = 40
MAX_ERRORS = 64
ATTEMPT_FILES = (contract.OWNER_FILE, contract.END_FILE, contract.OUTCOME_FILE,
                 f"{contract.HANGS_DIR}/verdict.json")  # fmt: skip
_EXPORT = re.compile(r"(?m)^\s*export ([A-Za-z_]\w*)=(.*)$")


def read_run(handle: Handle, store: RunStore, profile: ClusterProfile, whole: RunStore) -> Run:
    """All that a page shows of a run. What cannot be read is left out, and said.

    Args:
        whole: the run folder with the job file: that of its sweep for an element, else the same.

    Raises BackendError or OSError if the folder itself cannot be reached.
    """
    names, left_out = store.list(), list[str]()
    job = _end(whole, contract.JOB_FILE).decode(errors="replace")
    rendered = _rendered(store)
    secrets = _secrets(job, rendered)
    ledger = store.tail(contract.LEDGER_FILE, 0).splitlines()
    return Run(
        name=handle.run,
        told=_told(store, left_out),
        job=without_secrets(job, secrets),
        rendered={name: without_secrets(text, secrets) for name, text in rendered.items()},
        environment=_environment(rendered, secrets),
        receipt=parsed(_end(store, contract.RECEIPT_FILE)),
        trainer=parsed(rendered.get("trainer.json", "")),
        spec=_spec(job, profile),
        plan=parsed(_end(store, contract.PLAN_FILE)) or parsed(_end(whole, contract.PLAN_FILE)),
        versions=_versions(store),
        attempts=_attempts(store),
        intervals=tuple(intervals(ledger)),
        goodput=read_goodput(ledger),
        is_done=contract.DONE_FILE in names,
        is_cancelled="cancel" in names,
        left_out=tuple(left_out),
    )


def _told(store: RunStore, left_out: list[str]) -> Told:
    """The metrics, read line by line; as far as they can be read."""
    told = Told()
    follower = Follower(store, contract.METRICS_FILE)
    try:
        for line in follower.last():
            told.feed(line)
    except (OSError, BackendError) as error:  # the rest of the folder is shown all the same
        words = os_error_words(error) if isinstance(error, OSError) else str(error)
        left_out.append(f"{contract.METRICS_FILE}: {words}")
    return told


def _attempts(store: RunStore) -> tuple[Attempt, ...]:
    """The newest attempts, by number, with what their files say: one question for all files."""
    names = store.list(contract.ATTEMPTS_DIR)
    numbers = sorted(int(n) for n in names if re.fullmatch("[1-9][0-9]{0,8}", n))[-MAX_ATTEMPTS:]
    paths = [f"{contract.ATTEMPTS_DIR}/{n}/{name}" for n in numbers for name in ATTEMPT_FILES]
    files = [parsed(data) for data in store.ends(paths, SMALL_BYTES)] if paths else []
    rows = zip(numbers, *(files[k :: len(ATTEMPT_FILES)] for k in range(4)), strict=True)
    found = [Attempt(number, *own) for number, *own in rows]
    if found:
        errors = () if found[-1].end else _errors(store, found[-1].number)
        found[-1] = replace(found[-1], errors=errors, is_newest=True)
    return tuple(_as_supervised(found, parsed(_end(store, "supervisor.json"))))


def _as_supervised(attempts: list[Attempt], record: Mapping[str, Any]) -> Iterator[Attempt]:
    """The attempts of a local run: how one ended whose node 0 could not say so."""
    ended = record.get("ended")
    entries = (
        [entry for entry in ended if isinstance(entry, dict)] if isinstance(ended, list) else []
    )
    known = {entry.get("attempt"): entry for entry in entries}
    for attempt in attempts:
        yield attempt if attempt.end else replace(attempt, end=known.get(attempt.number, {}))


def _errors(store: RunStore, attempt: int) -> tuple[Mapping[str, Any], ...]:
    """What ranks of an attempt have reported."""
    folder = f"{contract.ATTEMPTS_DIR}/{attempt}/{contract.ERRORS_DIR}"
    names = [name for name in store.list(folder) if re.fullmatch(r"rank-\d+\.json", name)]
    paths = [f"{folder}/{name}" for name in names[:MAX_ERRORS]]
    reports = map(parsed, store.ends(paths, SMALL_BYTES) if paths else [])
    return tuple(report for report in reports if report)


def _rendered(store: RunStore) -> dict[str, str]:
    """The rendered files, but for node.py, which is the same everywhere."""
    names = [name for name in store.list(contract.RENDERED_DIR) if name != "node.py"]
    names = names[:MAX_RENDERED]
    paths = [f"{contract.RENDERED_DIR}/{name}" for name in names]
    files = store.ends(paths, SMALL_BYTES) if paths else []
    texts = (data.decode(errors="replace") for data in files)
    return {name: text for name, text in zip(names, texts, strict=True) if text}


def _environment(rendered: Mapping[str, str], secrets: list[str]) -> dict[str, str]:
    """The variables that rendered scripts and manifests set, by name."""
    found: dict[str, str] = {}
    for name, text in rendered.items():
        if name.endswith(".sh"):
            for match in _EXPORT.finditer(text):
                found[match[1]] = _unquoted(match[2])
        elif name.endswith(".yaml"):
            found.update(_variables(_data(text)))
    clean = (without_secrets(f"{name}={value}", secrets) for name, value in found.items())
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


def _secrets(job: str, rendered: Mapping[str, str]) -> list[str]:
    """All values in the job file and in what was rendered that nobody should read."""
    texts = {"job.yaml": job, **rendered}
    found: list[str] = []
    for name, text in texts.items():
        if name.endswith((".yaml", ".json")):
            found += secret_values(_data(text))
    return found


def _data(text: str) -> Any:
    """The data of a file that may be JSON or YAML; {} if it is neither."""
    from orchestrator.source import parse_document

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_document(text.encode(errors="replace"), "file").data
    except OrchestrateError:
        return {}


def _spec(job: str, profile: ClusterProfile) -> dict[str, Any]:
    """The job file with its defaults; as it stands where this version cannot read it."""
    from orchestrator.source import parse_document
    from orchestrator.spec import resolve_job

    try:
        document = parse_document(job.encode(errors="replace"), contract.JOB_FILE)
    except OrchestrateError:
        return {}
    try:
        return resolve_job(document, profile, []).spec.model_dump(mode="json", by_alias=True)
    except OrchestrateError:
        return dict(document.data)


def _versions(store: RunStore) -> dict[str, str]:
    """Of the programs that wrote the newest checkpoint, by its manifest."""
    saved = [n for n in store.list(contract.CHECKPOINTS_DIR) if n.startswith("step-")]
    manifests = [f"{contract.CHECKPOINTS_DIR}/{name}/manifest.json" for name in saved[-3:]]
    found = map(parsed, store.ends(manifests, 16 * SMALL_BYTES) if manifests else [])
    versions = [m["versions"] for m in found if isinstance(m.get("versions"), dict)]
    return {str(k): str(v) for k, v in versions[-1].items()} if versions else {}


def _end(store: RunStore, path: str) -> bytes:
    return store.ends([path], SMALL_BYTES)[0]
