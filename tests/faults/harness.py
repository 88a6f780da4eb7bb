"""A run whose attempts are killed one after the other, and what must hold after each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends import processes
from plan import EVERY, STEPS, Cell, Kill
from ranks import Ended
from running import wait_until
from runs import LEARNED, Run, digest_of
from trainer import checkpoint
from trainer.shards import METADATA, Shards
from traps import Trap, mark_of, published

# From a kill to the end of all ranks; without a timeout in between it takes less than a second.
BOUND_S = 30.0
LEFT_BEHIND_S = 10.0
NO_STEPS = ("start", "load", "restore", "finding")
NOTHING_LOST = (*NO_STEPS, "prune", "exit", "done")
# The ranks have not met yet, so the others wait for one that never comes. They are told, as
# torchrun does, and then leave at once by what the signal does, or after some seconds with 1.
UNNOTICED = ("start",)


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
        return Straight(losses, digest(run))


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
        if kill.place in UNNOTICED:
            ranks.terminate_after(kill.rank)
        ended = ranks.collect()
    ending_s = time.time() - _time_of_kill(run, attempt, kill, ended)
    assert ending_s < BOUND_S, ended
    return ending_s


def _time_of_kill(run: Run, attempt: int, kill: Kill, ended: list[Ended]) -> float:
    assert ended[kill.rank].exit_code == -signal.SIGKILL, (kill, run.errors(attempt))
    others = [end for rank, end in enumerate(ended) if rank != kill.rank]
    # An error would be that it did not end in time; a code, that it was killed or aborted.
    may = (0, 1, -signal.SIGTERM) if kill.place in UNNOTICED else (0,)
    assert not [end for end in others if end.error or end.exit_code not in may], ended
    assert all(error["kind"] == "failure" for error in run.errors(attempt))
    told = json.loads(mark_of(run, attempt).read_text())
    assert told["place"] == kill.place
    return float(told["time"])


def _repeated(run: Run, kill: Kill) -> int:
    """Steps that the next attempt makes again."""
    if kill.place in NO_STEPS:
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


def digest(run: Run) -> str:
    """SHA-256 over the state in the newest checkpoint; the same for all formats."""
    folder = published(run)[-1]
    assert is_whole(folder)
    return digest_of([state_of(folder), checkpoint.load_part(folder, "trainer.pt")])


def state_of(folder: Path) -> dict[str, Any]:
    """Whole tensors of weights and moments by name, each once."""
    if (folder / METADATA).exists():
        shards = Shards(folder)
        return {name: shards.whole(name) for name in sorted(shards.shapes)}
    weights, moments = (checkpoint.load_part(folder, name) for name in LEARNED)
    first = {id(value): (f"model.{name}", value) for name, value in reversed(weights.items())}
    found = dict(first.values())
    for name, state in moments["state"].items():
        found |= {f"optimizer.{name}.{key}": value for key, value in state.items()}
    return dict(sorted(found.items()))


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
        lambda: set(processes.descendants(os.getpid())) <= before,
        "the end of all that was started",
        LEFT_BEHIND_S,
    )
