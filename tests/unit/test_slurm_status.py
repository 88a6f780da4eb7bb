"""What a run's state is, for each pair of what Slurm says and what the run folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.base import Handle, State, Status, folded
from orchestrator.backends.site import LocalSite
from orchestrator.backends.slurm_commands import Job
from orchestrator.backends.slurm_states import STATES
from orchestrator.backends.slurm_status import Facts, read_facts, status_of, unanswered

HANDLE = Handle("slurm", "demo", Path("/runs/demo"), {"job": "12", "cluster": ""})
CONTINUE = "submit it again to continue"


def job(state: str, reason: str = "None", restarts: int = 0, code: int = 0) -> Job:
    return Job("12", "demo", state, reason, restarts, code)


def facts(owner: str = "12.0", end: str = "", **more: Any) -> Facts:
    ended = {"code": 1, "reason": end} if end else {}
    return Facts(attempt=1, owner=owner, end=ended, step=3, steps=7, **more)


@pytest.mark.parametrize(
    ("said", "known", "state", "reason"),
    [
        (job("PENDING", "Resources"), Facts(), State.PENDING, "Resources: it is next, and waits"),
        (job("PENDING", "JobHeldAdmin"), Facts(), State.QUEUED, "JobHeldAdmin: an administrator"),
        (job("PENDING", "None"), Facts(), State.PENDING, ""),
        (job("CONFIGURING"), Facts(), State.PENDING, "its nodes are being made ready"),
        (job("RUNNING"), Facts(), State.RUNNING, "its nodes are starting"),
        (job("RUNNING"), facts(), State.RUNNING, ""),
        (job("RUNNING"), facts(end="boom"), State.RUNNING, "attempt 1 has ended: boom"),
        (job("RUNNING", restarts=1), facts(end="boom"), State.RUNNING, "its nodes are starting"),
        (job("COMPLETING"), facts(), State.RUNNING, "its last processes are ending"),
        (job("SUSPENDED"), facts(), State.SUSPENDED, "it gave way to another job"),
        (job("PENDING", "BeginTime", 1), facts(end="drained"), State.RESTARTING, "drained; BeginT"),
        (job("REQUEUED"), facts(), State.RESTARTING, "it is being requeued"),
        (job("REQUEUE_HOLD"), facts(), State.QUEUED, "it was requeued and is held"),
        (job("COMPLETED"), facts(is_done=True), State.DONE, "done"),
        (job("COMPLETED"), facts(), State.DONE, "done"),
        (job("NODE_FAIL"), facts(is_done=True), State.DONE, "done"),
        (job("FAILED", "NonZeroExitCode", code=1), facts(end="rank 1: boom"), State.FAILED,
         "rank 1: boom"),
        (job("FAILED", "NonZeroExitCode", code=3), facts("11.0", "old"), State.FAILED,
         "NonZeroExitCode: its batch script left with an error; exit code 3; see logs/slurm-12"),
        (job("TIMEOUT", "TimeLimit"), facts(end="drained"), State.FAILED,
         "TIMEOUT; the time limit passed, and the job was not requeued; drained"),
        (job("OUT_OF_MEMORY", "OutOfMemory", code=125), facts(), State.FAILED,
         "OUT_OF_MEMORY; it took more memory than it had asked for; "),
        (job("NODE_FAIL"), facts(), State.FAILED, "NODE_FAIL; a node failed, and the job was not"),
        (job("CANCELLED by 0"), facts(end="drained"), State.CANCELLED, f"drained; {CONTINUE}"),
        (job("FAILED", code=138), facts(cancelled="12"), State.CANCELLED, CONTINUE),
        (job("FAILED", code=1), facts(end="boom", cancelled="11"), State.FAILED, "boom"),
        (job("NEW_STATE"), facts(), State.UNKNOWN, "Slurm says 'NEW_STATE', which this release"),
        (None, facts(is_done=True), State.DONE, "done"),
        (None, facts(end="boom", cancelled="12"), State.CANCELLED, f"boom; {CONTINUE}"),
        (None, Facts(1, owner="12.0", end={"code": 78, "reason": "no data"}), State.FAILED,
         "no data"),
        (None, facts(end="boom"), State.LOST, "boom; Slurm knows nothing of job 12 any more"),
        (None, Facts(end={}), State.LOST, "Slurm knows nothing of job 12 any more"),
    ],
)  # fmt: skip
def test_state_and_reason(said: Job | None, known: Facts, state: State, reason: str) -> None:
    status = status_of(HANDLE, said, known)
    assert status.state is state
    assert status.reason.startswith(reason)
    assert (status.reason == "") == (reason == "")
    assert (status.attempt, status.step, status.steps) == (known.attempt or None, *steps(known))


def steps(known: Facts) -> tuple[int | None, int | None]:
    return known.step, known.steps


@given(st.sampled_from([*STATES, "?"]), st.text(), st.text(), st.booleans(), st.integers(0, 3))
def test_no_pair_is_an_error_and_no_reason_steers_a_terminal(
    state: str, reason: str, end: str, is_done: bool, restarts: int
) -> None:
    known = facts("12.1", end, is_done=is_done)
    status = status_of(HANDLE, job(state, reason, restarts), known)
    assert status.reason.isprintable()
    if is_done:
        assert status.state in (STATES[state][0] if state in STATES else State.UNKNOWN, State.DONE,
                                State.QUEUED, State.RESTARTING)  # fmt: skip


def test_an_element_of_a_sweep_is_judged_by_its_own_attempts() -> None:
    one = Handle("slurm", "demo/3", Path("/runs/demo/3"), {"job": "12_3"})
    failed = Job("12_3", "demo", "FAILED", code=2)
    status = Status("demo/3", State.FAILED, 1, "boom", 3, 7)
    assert status_of(one, failed, facts("12_3.1", "boom")) == status
    running = Job("12_3", "demo", "RUNNING", restarts=1)
    assert status_of(one, running, facts("12_3.0")).reason == "its nodes are starting"
    assert status_of(one, running, facts("12_3.1")).reason == ""


def test_a_sweep_has_the_state_of_what_still_goes_on() -> None:
    elements = [Status("s", state) for state in (State.DONE, State.FAILED, State.PENDING)]
    pending = Status("demo", State.PENDING, reason="of 3 elements: 1 PENDING, 1 FAILED, 1 DONE")
    assert folded("demo", elements) == pending
    assert folded("demo", elements[:2]).state is State.FAILED
    assert folded("demo", elements[:1]).state is State.DONE


def test_a_silent_cluster_is_unknown_unless_the_run_is_done() -> None:
    assert unanswered(HANDLE, facts(), "no\n  answer\x1b") == Status(
        "demo", State.UNKNOWN, 1, "no answer?", 3, 7
    )
    assert unanswered(HANDLE, facts(is_done=True), "no answer").state is State.DONE


@pytest.mark.parametrize("name", ["runs", "r u'n\"s\n$(x)`y` k=v,w *?"])
def test_facts_of_run_folders(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    full, empty = root / "full", root / "empty"
    for number in (1, 2, 10):
        (full / "attempts" / str(number)).mkdir(parents=True)
        owner = {"job": f"12.{number}", "host": "h"}
        (full / f"attempts/{number}/owner.json").write_text(json.dumps(owner))
    end = {"version": 1, "code": 1, "reason": "boom"}
    (full / "attempts/10/end.json").write_text(json.dumps(end))
    (full / "cancel").write_text("12\n")
    (full / "metrics.jsonl").write_text('{"step": 3}\n{"step": 4}\n{"event": "end"}\n{"step": 5, "')
    (full / "rendered").mkdir()
    (full / "rendered/trainer.json").write_text('{"steps": 7}')
    empty.mkdir()
    (empty / "DONE").touch()
    (empty / "metrics.jsonl").write_text("[1]\n")
    assert read_facts(LocalSite(), [full, empty, root / "nothing"]) == [
        Facts(10, False, "12", "12.10", end, 4, 7), Facts(is_done=True), Facts(),
    ]  # fmt: skip
    assert read_facts(LocalSite(), []) == []
