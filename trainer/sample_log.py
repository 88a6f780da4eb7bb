"""The samples that each step took, written by every rank, and the proof that epochs are exact.

    python -m trainer.sample_log RUN_DIR

reads samples/ of a run, over all of its attempts, and tells for each epoch whether a sample was
taken twice or skipped. It leaves with 1 if so, or if the log does not show it. It needs no torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
FOLDER = "samples"
NUM_SHOWN = 3  # faults of a kind that are shown by number


class SampleLog:
    """Writer of one rank's part of one attempt: samples/attempt-N-rank-R.jsonl.

    The first line tells num_samples, of an epoch, and which of how many shares of a step's samples
    the rank takes. Each other line is a step, with the numbers of its samples by epoch.
    """

    def __init__(
        self, run_dir: Path, attempt: int, rank: int, share: tuple[int, int], num_samples: int
    ) -> None:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"attempt-{attempt}-rank-{rank:05d}.jsonl"
        self._file = path.open("a", encoding="utf-8")
        self._taken: dict[str, list[int]] = {}
        self._num_samples = num_samples
        self._write({"num_samples": num_samples, "share": share[0], "shares": share[1]})

    def took(self, numbers: Numbers, places: Numbers) -> None:
        """A batch of the next step: numbers as they came with it, places in the common stream."""
        for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
            self._taken.setdefault(str(place // self._num_samples), []).append(number)

    def end_step(self, step: int) -> None:
        """The batches since the last call were those of `step`."""
        self._write({"step": step, "epochs": self._taken})
        self._taken = {}

    def sync(self) -> None:
        """What was written outlasts the machine; to be called before a checkpoint."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self, content: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()


@dataclass
class Attempt:
    """What the ranks of an attempt wrote: by step and share, the samples by epoch."""

    number: int
    shares: int = 0
    num_samples: int = 0
    steps: dict[int, dict[int, dict[int, list[int]]]] = field(default_factory=dict)

    def whole_steps(self) -> list[int]:
        """Steps of which each rank wrote its share; the others were cut off, and made again."""
        return sorted(s for s, shares in self.steps.items() if len(shares) == self.shares)


Steps = dict[int, dict[int, Numbers]]  # by step and epoch


def read_attempts(run_dir: Path) -> list[Attempt]:
    """The attempts that left a log, oldest first. Raises ValueError for what is no such log."""
    attempts: dict[int, Attempt] = {}
    for path in sorted((run_dir / FOLDER).glob("attempt-*-rank-*.jsonl")):
        number = int(path.name.split("-")[1])
        _read_file(path, attempts.setdefault(number, Attempt(number)))
    return [attempts[number] for number in sorted(attempts)]


def _read_file(path: Path, attempt: Attempt) -> None:
    lines = [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")]
    if not lines:
        return  # killed before its first step
    try:
        head = json.loads(lines[0])
        attempt.shares, attempt.num_samples = int(head["shares"]), int(head["num_samples"])
        for line in lines[1:]:
            content = json.loads(line)
            epochs = {int(epoch): numbers for epoch, numbers in content["epochs"].items()}
            shares = attempt.steps.setdefault(int(content["step"]), {})
            # Ranks that split each block take the same share.
            if shares.setdefault(int(head["share"]), epochs) != epochs:
                raise ValueError(f"step {content['step']}: ranks of one share differ")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def history(attempts: Sequence[Attempt]) -> Steps:
    """Each step as it counts: an attempt's steps do up to where a newer one took over."""
    steps: Steps = {}
    for attempt in attempts:
        whole = attempt.whole_steps()
        if whole:
            steps = {step: epochs for step, epochs in steps.items() if step < whole[0]}
        for step in whole:
            steps[step] = _joined(attempt.steps[step])
    return steps


def _joined(shares: Mapping[int, Mapping[int, Sequence[int]]]) -> dict[int, Numbers]:
    epochs: dict[int, list[int]] = {}
    for share in sorted(shares):
        for epoch, numbers in shares[share].items():
            epochs.setdefault(epoch, []).extend(numbers)
    return {epoch: np.asarray(epochs[epoch], np.int64) for epoch in sorted(epochs)}


def check(run_dir: Path) -> tuple[list[str], list[str]]:
    """What the log of a run shows, as lines, and the faults that it shows."""
    attempts = read_attempts(run_dir)
    steps = history(attempts)
    if not steps:
        text = f"{run_dir / FOLDER}: no step is logged; set train.logging.samples: true"
        return [], [text]
    sizes = sorted({attempt.num_samples for attempt in attempts if attempt.num_samples})
    if len(sizes) > 1:
        return [], [f"epochs have no common length: attempts had {sizes} samples"]
    faults = list(_gaps(steps, run_dir))
    told = [f"steps {min(steps)} to {max(steps)}, attempts {[a.number for a in attempts]}"]
    of_epochs = sorted({epoch for epochs in steps.values() for epoch in epochs})
    for epoch in of_epochs:
        is_whole = epoch < of_epochs[-1] and (min(steps) == 1 or epoch > of_epochs[0])
        wrong = list(_faults_of_epoch(steps, epoch, sizes[0], is_whole))
        faults += wrong
        if not wrong:
            taken = sum(len(epochs[epoch]) for epochs in steps.values() if epoch in epochs)
            told.append(f"epoch {epoch}: {taken} of {sizes[0]} samples, none twice")
    return told, faults


def _gaps(steps: Steps, run_dir: Path) -> Iterator[str]:
    missing = sorted(set(range(min(steps), max(steps))) - set(steps))
    if missing:
        yield f"not logged by all ranks: {_some(missing)} of the steps up to {max(steps)}"
    try:
        done = int(json.loads((run_dir / "DONE").read_bytes())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if done > max(steps):
        yield f"DONE says {done} steps, and the log ends with step {max(steps)}"


def _faults_of_epoch(steps: Steps, epoch: int, size: int, is_whole: bool) -> Iterator[str]:
    """is_whole: whether all of the epoch must be there, so that what is missing was skipped."""
    took: dict[int, list[int]] = {}  # steps by sample
    for step in sorted(steps):
        for number in steps[step].get(epoch, np.empty(0, np.int64)).tolist():
            took.setdefault(number, []).append(step)
    twice = [f"{number} in steps {took[number]}" for number in took if len(took[number]) > 1]
    if twice:
        yield f"epoch {epoch}: taken twice: {_some(twice)}"
    if strange := [number for number in took if not 0 <= number < size]:
        yield f"epoch {epoch}: no samples of 0 to {size - 1}: {_some(strange)}"
    if is_whole and (skipped := sorted(set(range(size)) - set(took))):
        yield f"epoch {epoch}: skipped: {_some(skipped)}"


def _some(items: Sequence[object]) -> str:
    more = f" and {len(items) - NUM_SHOWN} more" if len(items) > NUM_SHOWN else ""
    return "; ".join(map(str, items[:NUM_SHOWN])) + more


def main(arguments: Sequence[str]) -> int:
    """Check the run folder in `arguments`; 1 for a fault, 2 for no such argument."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m trainer.sample_log RUN_DIR", file=sys.stderr)
        return 2
    try:
        told, faults = check(Path(arguments[0]))
    except (OSError, ValueError) as error:
        told, faults = [], [str(error)]
    print("\n".join([*told, *(f"FAULT {fault}" for fault in faults)]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
