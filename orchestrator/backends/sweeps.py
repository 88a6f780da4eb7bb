"""Elements of sweeps: each has a whole run folder, named by its number, in that of the sweep."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator import contract
from orchestrator.backends import folder
from orchestrator.backends.base import Element, Handle, RenderedFiles, Status, folded
from orchestrator.backends.site import Site
from orchestrator.contract import RunPaths
from orchestrator.errors import UserError

SWEEP_FILE = "sweep.json"
CANCEL_FILE = "cancel"
ELEMENT_FILES = ("launch.json", "node.sh")  # beside its trainer.json
VALIDATIONS = ("-m", "100000", "-e", '"validation"')  # which lines of metrics, and how many
# SWEEP COUNT -> the numbers of those that are not finished.
LEFT = """
number=0
while [ "$number" -lt "$2" ]; do
  if [ ! -e "$1/$number/DONE" ]; then echo "$number"; fi
  number=$((number + 1))
done
"""


@dataclass(frozen=True)
class Sweep:
    """rendered/sweep.json.

    Args:
        at_once: how many elements run at once at most; None for all.
        values: of each element, by key with dots.
    """

    at_once: int | None
    values: Sequence[Mapping[str, Any]]


def sweep_of(rendered: RenderedFiles) -> Sweep | None:
    """The sweep in rendered files; None for those of a single run."""
    text = rendered.files.get(SWEEP_FILE)
    return None if text is None else _sweep(text.encode())


def _sweep(data: bytes) -> Sweep | None:
    content = folder.parsed(data)
    return Sweep(content["at_once"], content["values"]) if "values" in content else None


def read_sweep(site: Site, run_dir: Path) -> Sweep | None:
    """The sweep of a run folder; None if it is one of a single run."""
    return _sweep(site.store(run_dir).tail(f"{contract.RENDERED_DIR}/{SWEEP_FILE}", 0))


def check_continues(site: Site, old: Handle | None, sweep: Sweep | None) -> None:
    """Raises UserError where a run folder's elements would become others: their checkpoints would
    go on under other values.

    Args:
        old: the run that is there; None if there is none.
        sweep: the one that is to be submitted; None for a single run.
    """
    if old is None:
        return
    before = read_sweep(site, old.run_dir)
    other = "Give it another name, or start anew with --fresh."
    if (old.num_elements == 0) != (sweep is None):
        was, becomes = ("a single run", "a sweep") if sweep else ("a sweep", "a single run")
        raise UserError(f"{old.run}: it was {was}, and would be {becomes} now. {other}")
    if before is None or sweep is None:
        return
    for number, (old_values, values) in enumerate(zip(before.values, sweep.values, strict=False)):
        if old_values != values:
            raise UserError(
                f"sweep: element {number} of {old.run} was {words(old_values)}, and would be "
                f"{words(values)} now. Add elements at the end only. {other}"
            )


def words(values: Mapping[str, Any]) -> str:
    """The values of an element, for a message."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def numbers_left(site: Site, run_dir: Path, sweep: Sweep) -> list[int]:
    """The elements that are not marked as finished."""
    done = site.run(["sh", "-c", LEFT, "sh", str(run_dir), str(len(sweep.values))])
    return [int(number) for number in done.stdout.split()]


def prepare(site: Site, run_dir: Path, rendered: RenderedFiles, numbers: Sequence[int]) -> None:
    """Make or renew the run folders of elements; the sweep's own files are there.

    Each gets what it needs to be kept alone, but for the programs.
    """
    common = {n: rendered.files[n].encode() for n in ELEMENT_FILES if n in rendered.files}
    files: dict[str, bytes] = {}
    for number in numbers:
        own = {**common, "trainer.json": rendered.files[f"trainer-{number:05}.json"].encode()}
        files |= {f"{number}/{contract.RENDERED_DIR}/{name}": data for name, data in own.items()}
    logs = [f"{number}/{contract.LOGS_DIR}" for number in numbers]  # Slurm makes no folder for them
    links = {f"{number}/launch": "../launch" for number in numbers}
    folder.unpack(site, run_dir, files, folders=logs, links=links)
    cancels = [str(run_dir / str(number) / CANCEL_FILE) for number in numbers]
    folder.checked(site, "rm", "-f", "--", *cancels)


def write_receipts(
    site: Site, sweep: Handle, elements: Sequence[Handle], workdir: Path, rendered: RenderedFiles
) -> None:
    """Write the receipts of elements, and that of their sweep last: it makes all of them known."""
    own = [*(name for name in ELEMENT_FILES if name in rendered.files), "trainer.json"]
    files = {
        f"{one.run_dir.name}/{contract.RECEIPT_FILE}": folder.receipt_of(one, workdir, own)
        for one in elements
    }
    if files:
        folder.unpack(site, sweep.run_dir, files)
    folder.write_receipt(site, sweep, workdir, rendered.files)


def element(sweep: Handle, number: int, ids: Mapping[str, str] | None = None) -> Handle:
    """The handle of an element that was started with `ids`."""
    run_dir = sweep.run_dir / str(number)
    return Handle(sweep.backend, f"{sweep.run}/{number}", run_dir, ids or {})


def element_handles(site: Site, sweep: Handle) -> list[Handle]:
    """The handles of all elements, in their order; one that was never started has no ids."""
    bare = [element(sweep, number) for number in range(sweep.num_elements)]
    receipts = site.ends([h.run_dir / contract.RECEIPT_FILE for h in bare], folder.TAIL_BYTES)
    pairs = zip(bare, receipts, strict=True)
    return [folder.handle_of(h.run_dir, receipt, h.backend) or h for h, receipt in pairs]


Ask = Callable[[Sequence[Handle]], "list[Status]"]


def statuses(site: Site, handles: Sequence[Handle], ask: Ask) -> list[Status]:
    """One status for each handle, by one question for all runs and all elements of sweeps.

    Args:
        ask: returns one status for each of some handles, none of them a sweep's.
    """
    groups = [element_handles(site, h) if h.num_elements else [h] for h in handles]
    answers = iter(ask([one for group in groups for one in group]))
    found = []
    for handle, group in zip(handles, groups, strict=True):
        own = list(islice(answers, len(group)))
        found.append(folded(handle.run, own) if handle.num_elements else own[0])
    return found


def elements(site: Site, sweep: Handle, ask: Ask) -> list[Element]:
    """All that is known of a sweep's elements, in their order; none for a single run.

    Args:
        ask: see `statuses`.
    """
    handles = element_handles(site, sweep)
    if not handles:
        return []
    given = read_sweep(site, sweep.run_dir)
    values = [*given.values] if given else []
    values += [{}] * (len(handles) - len(values))
    found = zip(handles, ask(handles), values, strict=False)
    rows = [Element(number, h, status, v) for number, (h, status, v) in enumerate(found)]
    losses = _losses(site, [handle.run_dir for handle in handles])
    return [
        replace(row, loss=loss, best_validation_loss=best)
        for row, (loss, best) in zip(rows, losses, strict=True)
    ]


def _losses(site: Site, run_dirs: Sequence[Path]) -> list[tuple[float | None, float | None]]:
    """Newest training loss and lowest validation loss of each run; None where there is none."""
    paths = [RunPaths(run_dir).metrics for run_dir in run_dirs]
    newest = [_newest_loss(end) for end in site.ends(paths, folder.TAIL_BYTES)]
    best = {str(path): math.inf for path in paths}
    # -Z: a NUL behind the name of each line's file.
    found = site.run(["grep", "-asHZ", *VALIDATIONS, "--", *best])
    for path, line in re.findall(rb"([^\0]*)\0([^\n]*)\n?", found.raw):
        loss, name = _loss(folder.parsed(line), "validation"), os.fsdecode(path)
        if loss is not None and name in best:
            best[name] = min(best[name], loss)
    lowest = [best[str(path)] for path in paths]
    return [(n, b if b < math.inf else None) for n, b in zip(newest, lowest, strict=True)]


def _newest_loss(metrics: bytes) -> float | None:
    losses = (_loss(folder.parsed(line), None) for line in reversed(metrics.splitlines()))
    return next((loss for loss in losses if loss is not None), None)


def _loss(entry: Mapping[str, Any], event: str | None) -> float | None:
    """The loss in a metrics line of one kind, if it is a finite number."""
    loss = entry.get("loss")
    if entry.get("event") != event or isinstance(loss, bool) or not isinstance(loss, (int, float)):
        return None
    return float(loss) if math.isfinite(loss) else None
