"""The Slurm backend on a real Slurm; only the batch script has a stand-in, which trains nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.backends.base import After, Handle, State, Status
from orchestrator.backends.slurm_submit import LAUNCH_FILES
from orchestrator.errors import BackendError, UserError
from running import read, wait_until
from slurm.backend_runs import DONE, DRAINS, NAMES, WAITS, Runs, job, runs_below
from slurm.cluster import Cluster


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path) -> Runs:
    return runs_below(cluster, tmp_path)


@pytest.fixture(params=NAMES)
def any_runs(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Runs:
    return runs_below(cluster, tmp_path, request.param)


@pytest.mark.slurm24
def test_a_run_goes_to_its_end_and_is_not_run_again(any_runs: Runs) -> None:
    runs = any_runs
    submission = runs.submit('printf "%s|" "$@"\n' + DONE)
    handle = submission.handle
    assert submission.started
    assert submission.message == f"demo is submitted as job {job(handle)} in {handle.run_dir}"
    assert runs.wait_for(handle, State.DONE) == Status("demo", State.DONE, 1, "done", 3, 7)
    log = (handle.run_dir / f"logs/slurm-{job(handle)}.log").read_text()
    assert log == f"{handle.run_dir}\n{handle.run_dir}|{runs.workdir}|"
    again = runs.submit(DONE)
    assert not again.started
    assert "is done: nothing to start" in again.message
    assert again.handle == handle == runs.backend.handle(handle.run_dir)
    assert runs.backend.list(runs.root) == [handle]
    assert (handle.run_dir / "job.yaml").read_text() == "name: demo\n"
    assert read(handle.run_dir / "receipt.json")["workdir"] == str(runs.workdir)
    assert {p.name for p in (handle.run_dir / "launch").iterdir()} == set(LAUNCH_FILES)


@pytest.mark.slurm24
def test_what_waits_is_submitted_once(runs: Runs) -> None:
    handle = runs.start(DONE, "demo", "--hold")
    status = runs.status(handle)
    assert status.state is State.QUEUED
    assert status.reason.startswith("JobHeldUser: you hold it")
    again = runs.submit(DONE)
    assert (again.started, again.handle) == (False, handle)
    assert f"as job {job(handle)} (PENDING) already: nothing started" in again.message
    with pytest.raises(BackendError, match="cancel it before you start it --fresh"):
        runs.submit(DONE, fresh=True)
    assert "CANCELLED" in runs.backend.cancel(handle)
    assert runs.status(handle).state is State.CANCELLED
    assert "does not run: CANCELLED" in runs.backend.cancel(handle)
    continued = runs.submit(DONE)
    assert "demo continues as job" in continued.message
    assert runs.wait_for(continued.handle, State.DONE).attempt == 1


def test_the_same_name_submitted_at_once_is_one_job(runs: Runs) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: runs.submit(WAITS), range(4)))
    assert sorted(s.started for s in made) == [False, False, False, True]
    assert len({job(s.handle) for s in made}) == 1


def test_a_job_whose_receipt_was_never_written_is_found(runs: Runs) -> None:
    handle = runs.start(WAITS)
    (handle.run_dir / "receipt.json").unlink()
    assert runs.backend.list(runs.root) == []
    again = runs.submit(WAITS)
    assert (again.started, again.handle) == (False, handle)
    assert runs.backend.list(runs.root) == [handle]


def test_another_folder_with_a_run_of_this_name_waits_its_turn(
    runs: Runs, cluster: Cluster, tmp_path: Path
) -> None:
    first = runs.start(WAITS)
    runs.wait_ready(first)
    other = runs_below(cluster, tmp_path, "other")
    second = other.start(DONE)
    assert "Dependency: waits for another job" in runs.status(second).reason
    (first.run_dir / "attempts/1/go").touch()
    other.wait_for(second, State.DONE)


def test_a_failure_has_the_attempts_reason(runs: Runs) -> None:
    handle = runs.start("leave 1 'rank 1 on node 0: boom'")
    failed = runs.wait_for(handle, State.FAILED)
    assert failed == Status("demo", State.FAILED, 1, "rank 1 on node 0: boom", 3, 7)


@pytest.mark.slurm24
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 3", "NonZeroExitCode: its batch script left with an error; exit code 3; see logs/"),
        ("kill -9 $$", "exit code 137; see logs/slurm-"),
        ("rm -rf $run/logs", "DONE"),
    ],
)
def test_a_script_that_fails_has_slurms_reason(runs: Runs, body: str, reason: str) -> None:
    handle = runs.start(body)
    status = runs.wait_for(handle, State.FAILED, State.DONE)
    assert reason in f"{status.state.value} {status.reason}"


@pytest.mark.slurm24
def test_a_cancel_drains_and_submit_again_continues(runs: Runs) -> None:
    handle = runs.start(DRAINS)
    runs.wait_ready(handle)
    assert runs.status(handle) == Status("demo", State.RUNNING, 1, "", 3, 7)
    words = "CANCELLED (drained; submit it again to continue)"
    assert runs.backend.cancel(handle) == f"demo: {words}"
    assert runs.cluster.scontrol(job(handle))["JobState"] == "CANCELLED"
    again = runs.submit(DONE)
    assert "demo continues as job" in again.message
    assert not (handle.run_dir / "cancel").exists()
    assert runs.wait_for(again.handle, State.DONE).attempt == 2


def test_cancel_now_ends_what_does_not_listen(runs: Runs) -> None:
    handle = runs.start('trap "" TERM\n' + WAITS)
    runs.wait_ready(handle)
    assert "CANCELLED" in runs.backend.cancel(handle, now=True)
    assert runs.status(handle).state is State.CANCELLED


def test_a_cancel_of_what_just_finishes_is_done(runs: Runs) -> None:
    handle = runs.start("trap 'leave 0 done' TERM\ntouch \"$attempt/ready\"\nawait never")
    runs.wait_ready(handle)
    assert "DONE" in runs.backend.cancel(handle)


def test_a_cancel_that_is_not_heard_is_repeated_and_given_up(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.slurm.LEAVE_GRACE_S", -17.0)
    handle = runs.start('trap "" TERM\n' + WAITS)
    runs.wait_ready(handle)
    with pytest.raises(BackendError, match="demo did not stop within 3 s"):
        runs.backend.cancel(handle)


@pytest.mark.slurm24
def test_a_requeued_run_is_restarting(runs: Runs) -> None:
    body = f"if [[ $n != 0 ]]; then\n{WAITS}\nfi\n"
    body += """echo '{"reason": "preempted"}' >$attempt/end.json\n"""
    handle = runs.start(body + 'scontrol requeue "$SLURM_JOB_ID"', "demo", "--requeue")
    runs.wait_for(handle, State.RESTARTING)
    words = "preempted; BeginTime: its earliest start has not come"
    wait_until(lambda: runs.status(handle).reason.startswith(words), words)
    assert runs.status(handle).state is State.RESTARTING
    assert not runs.submit(DONE).started
    # Not within the second of the requeue: Slurm 24.11 then takes the new start for the old one.
    runs.cluster.client("scontrol", "update", f"JobId={job(handle)}", "StartTime=now+2")
    runs.wait_ready(handle, 2)
    (handle.run_dir / "attempts/2/go").touch()
    assert runs.wait_for(handle, State.DONE).attempt == 2


def test_fresh_renames_the_old_run(runs: Runs) -> None:
    first = runs.start(DONE)
    runs.wait_for(first, State.DONE)
    again = runs.submit(DONE, fresh=True)
    assert f"demo is submitted as job {job(again.handle)}" in again.message
    assert "demo.old-1 now" in again.message
    assert runs.wait_for(again.handle, State.DONE).attempt == 1
    names = sorted(p.name for p in runs.root.iterdir() if p.is_dir())
    assert names == ["demo", "demo.old-1"]


def test_a_job_that_slurm_does_not_know_is_lost(runs: Runs) -> None:
    handle = runs.start("exit 3")
    runs.wait_for(handle, State.FAILED)
    unknown = Handle("slurm", "demo", handle.run_dir, {"job": "99999", "cluster": ""})
    other = Handle("slurm", "another", handle.run_dir, handle.ids)
    for one, id_ in ((unknown, "99999"), (other, job(handle))):
        status = runs.status(one)
        assert status.state is State.LOST
        assert f"Slurm knows nothing of job {id_} any more; submit it again" in status.reason
    never = Handle("slurm", "demo", handle.run_dir, {})
    assert [s.state for s in runs.backend.status([never, unknown, handle])] == [
        State.LOST, State.LOST, State.FAILED,
    ]  # fmt: skip


def test_a_chain_of_runs(runs: Runs) -> None:
    first = runs.start(WAITS, "first")
    second = runs.submit(DONE, "second", after=[After("afterok", "first")]).handle
    third = runs.submit(DONE, "third", after=[After("afternotok", job(second))]).handle
    runs.wait_ready(first)
    assert "Dependency" in runs.status(second).reason
    (first.run_dir / "attempts/1/go").touch()
    runs.wait_for(second, State.DONE)
    # It waits for a failure that cannot come any more.
    assert runs.wait_for(third, State.CANCELLED)
    fourth = runs.submit(DONE, "fourth", after=[After("afterok", "first")]).handle
    runs.wait_for(fourth, State.DONE)
    with pytest.raises(UserError, match="after: no run 'nope' under"):
        runs.submit(DONE, "fifth", after=[After("afterok", "nope")])
    with pytest.raises(UserError, match="'when' is no kind; allowed: after, afterany"):
        runs.submit(DONE, "fifth", after=[After("when", "first")])
