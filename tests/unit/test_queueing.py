"""timeouts.queue: whoever follows a run that waits for too long ends it; status tells the wait."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from orchestrator.backends.base import Backend, Handle, State, Status
from orchestrator.backends.runstore import LocalRunStore, RunStore
from orchestrator.cli.queueing import RECEIPT_TIME, Queueing, queueing_of, shown
from orchestrator.cli.watch import watch_run


@dataclass
class Scheduler:
    """A scheduler that has no room: the run waits until it is cancelled, or begins."""

    store: RunStore
    begins_after: int = 1000
    cancelled: list[bool] = field(default_factory=list)
    poll_s: float = 0.01

    def run_store(self, handle: Handle) -> RunStore:
        return self.store

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        self.begins_after -= 1
        state = State.PENDING if self.begins_after > 0 else State.DONE
        return [Status(h.run, State.CANCELLED if self.cancelled else state) for h in handles]

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        self.cancelled.append(now)
        return f"{handle.run} was cancelled"


def submitted(folder: Path, limit_s: int | None, ago_s: float) -> tuple[Scheduler, Handle]:
    """A run that was submitted some seconds ago."""
    (folder / "rendered").mkdir()
    launch = {} if limit_s is None else {"queue_timeout_s": limit_s}
    (folder / "rendered" / "launch.json").write_text(json.dumps(launch))
    at = time.strftime(RECEIPT_TIME, time.gmtime(time.time() - ago_s))
    (folder / "receipt.json").write_text(json.dumps({"submitted_at": at}))
    return Scheduler(LocalRunStore(folder)), Handle("x", "demo", folder)


def test_a_run_that_waits_for_too_long_is_cancelled_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, handle = submitted(tmp_path, limit_s=600, ago_s=3700)
    assert watch_run(cast(Backend, backend), handle) == 1
    assert backend.cancelled == [True]
    said = capsys.readouterr().out
    assert "demo has waited 1h1m" in said
    assert "of timeouts.queue (10m): it is cancelled" in said
    assert "demo was cancelled" in said


@pytest.mark.parametrize(("limit_s", "ago_s"), [(None, 1e6), (7200, 3700)])
def test_a_run_that_may_wait_is_left_alone(
    tmp_path: Path, limit_s: int | None, ago_s: float
) -> None:
    backend, handle = submitted(tmp_path, limit_s, ago_s)
    backend.begins_after = 3
    assert watch_run(cast(Backend, backend), handle) == 0
    assert backend.cancelled == []


@pytest.mark.parametrize("state", State)
def test_only_the_wait_before_the_first_attempt_counts(state: State) -> None:
    waits = state in (State.PENDING, State.QUEUED)
    assert Queueing(10, 100.0).is_over(Status("demo", state), 111.0) == waits
    assert not Queueing(10, 100.0).is_over(Status("demo", state), 110.0)


@pytest.mark.parametrize("state", [State.PENDING, State.QUEUED])
def test_a_run_that_was_held_or_preempted_has_begun_already(state: State) -> None:
    queueing = Queueing(limit_s=60, since_s=0.0)
    assert queueing.is_over(Status("demo", state), 100.0)
    assert not queueing.is_over(Status("demo", state, attempt=4), 100.0)


def test_status_tells_the_wait_against_its_limit(tmp_path: Path) -> None:
    backend, handle = submitted(tmp_path, limit_s=7200, ago_s=3700)
    place = cast(Backend, backend)
    assert shown(place, handle, Status("demo", State.PENDING)).startswith("has waited 1h1m")
    assert shown(place, handle, Status("demo", State.PENDING)).endswith("of timeouts.queue (2h)")
    assert shown(place, handle, Status("demo", State.RUNNING)) == ""


def test_without_a_receipt_the_wait_begins_when_it_is_followed(tmp_path: Path) -> None:
    backend, handle = submitted(tmp_path, limit_s=60, ago_s=3700)
    (tmp_path / "receipt.json").unlink()
    before_s = time.time()
    queueing = queueing_of(cast(Backend, backend), handle)
    assert queueing is not None
    assert before_s <= queueing.since_s <= time.time()
    (tmp_path / "rendered" / "launch.json").write_text("no JSON")
    assert queueing_of(cast(Backend, backend), handle) is None
