"""A run whose attempts are killed one after the other, and what must hold after each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends import processes
from plan import EVERY, STEPS, Cell, Kill
from ranks import Ended
from runs import Run
from traps import Trap, mark_of, published

# From a kill to the end of all ranks; without a timeout in between it takes less than a second.
BOUND_S = 30.0
LEFT_BEHIND_S = 10.0
NOTHING_LOST = ("start", "load", "prune", "exit", "done")


class Account(NamedTuple):
    """What one kill cost: steps made again, seconds until the last rank had ended."""

    kill: Kill
    repeated: int
    ending_s: float


@dataclass(frozen=True)
class Straight:
    """What came out of a run that nothing happened to."""

    losses: Mapping[int, float]
    digest: str


@lru_cache
def straight(strategy: str) -> Straight:
    """The undisturbed run of a strategy."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        assert run.finish(Cell(strategy).config()) == "done"
        losses = run.losses()
        assert sorted(losses) == list(range(1, STEPS + 1))
        return Straight(losses, run.digest())


def disturb(run: Run, config: Mapping[str, Any], kills: tuple[Kill, ...]) -> list[Account]:
    """Start the run once for each kill and once more; all must be as if nothing had happened."""
    accounts = []
    for attempt, kill in enumerate(kills, 1):
        before = newest_whole(run)
        ending_s = _killed_attempt(run, config, attempt, kill)
        _check_resumed(run, attempt, before)
        accounts.append(Account(kill, _repeated(run, kill), ending_s))
    last, before = len(kills) + 1, newest_whole(run)
    with nothing_left_running():
        assert run.finish(config, last) == "done"
    _check_resumed(run, last, before)
    assert run.outcome(last)["step"] == STEPS
    return accounts


def _killed_attempt(run: Run, config: Mapping[str, Any], attempt: int, kill: Kill) -> float:
    """Make the kill; returns the seconds from it to the end of the other ranks."""
    with nothing_left_running():
        run.claim(attempt)
        ranks = run.fork(config, attempt, Trap(kill, attempt))
        ranks.begin()
        if kill.place == "start":  # there is no group yet by which the others could notice
            ranks.terminate_after(kill.rank)
        ended = ranks.collect()
    ending_s = time.time() - _time_of_kill(run, attempt, kill, ended)
    assert ending_s < BOUND_S, ended
    return ending_s


def _time_of_kill(run: Run, attempt: int, kill: Kill, ended: list[Ended]) -> float:
    assert ended[kill.rank].exit_code == -signal.SIGKILL, (kill, run.errors(attempt))
    others = [end for rank, end in enumerate(ended) if rank != kill.rank]
    assert not [end for end in others if end.error], ended  # "did not end in time", for one
    assert all(error["kind"] == "failure" for error in run.errors(attempt))
    told = json.loads(mark_of(run, attempt).read_text())
    assert told["place"] == kill.place
    return float(told["time"])


def _repeated(run: Run, kill: Kill) -> int:
    """Steps that the next attempt makes again."""
    if kill.place in ("start", "load"):
        return 0
    newest = newest_whole(run)
    repeated = kill.step - (0 if newest is None else step_of(newest))
    assert 0 <= repeated <= EVERY, (kill, newest)
    assert repeated == 0 or kill.place not in NOTHING_LOST, (kill, newest)
    return repeated


def _check_resumed(run: Run, attempt: int, newest: str | None) -> None:
    """The attempt went on from the newest whole checkpoint, if it came to that."""
    starts = [event for event in run.events("start") if event["attempt"] == attempt]
    assert [event["resumed_from"] for event in starts] in ([], [newest])
    assert not run.events("broken")


def newest_whole(run: Run) -> str | None:
    """The newest checkpoint, all of which must be whole; by a check of its own."""
    names = [path.name for path in published(run)]
    assert all(is_whole(path) for path in published(run)), names
    return names[-1] if names else None


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint has exactly the files of its manifest, with their contents."""
    files = json.loads((folder / "manifest.json").read_bytes())["files"]
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    del found["manifest.json"]
    return found == {name: file["sha256"] for name, file in files.items()}


def step_of(name: str) -> int:
    """The step of a checkpoint of this name."""
    return int(name.split("-")[1])


@contextlib.contextmanager
def nothing_left_running() -> Iterator[None]:
    """After the block no process is left that began in it, orphans and loader workers too."""
    processes.become_subreaper()
    before = set(processes.descendants(os.getpid()))
    yield
    wait_until(
        lambda: set(processes.descendants(os.getpid())) <= before, "the end of all that was started"
    )


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = LEFT_BEHIND_S) -> None:
    """Return as soon as the condition holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
