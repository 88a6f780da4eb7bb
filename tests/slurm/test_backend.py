"""The Slurm backend on a real Slurm; only the batch script has a stand-in, which trains nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.backends.base import After, Handle, State, Status, Submission
from orchestrator.backends.site import COMMAND_TIMEOUT_S, Completed, LocalSite
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.backends.slurm_submit import LAUNCH_FILES
from orchestrator.errors import BackendError, UserError
from running import read, wait_until
from slurm.cluster import Cluster

# What templates/slurm/job.sh.j2 promises, in a few lines: it claims an attempt, ends it, and after
# a cancel lets Slurm say so.
SCRIPT = """#!/bin/bash
#SBATCH --time=10
{directives}
run=$1
n=$(ls "$run/attempts" 2>/dev/null | wc -l)
attempt=$run/attempts/$((n + 1))
mkdir -p "$attempt"
echo "{{\\"job\\": \\"$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}\\"}}" >"$attempt/owner.json"
echo '{{"step": 3}}' >>"$run/metrics.jsonl"
leave() {{ # CODE REASON
  echo "{{\\"code\\": $1, \\"reason\\": \\"$2\\"}}" >"$attempt/end.json"
  [[ $1 != 0 ]] || touch "$run/DONE"
  if [[ $1 != 0 && -e $run/cancel ]]; then scancel "$SLURM_JOB_ID"; fi
  exit "$1"
}}
await() {{ # a file in the attempt's folder
  until [[ -e $attempt/$1 ]]; do sleep 0.1; done
}}
pwd
{body}
"""
DRAINS = "trap 'leave 75 drained' TERM\ntouch \"$attempt/ready\"\nawait never"
DONE = "leave 0 done"
WAITS = 'touch "$attempt/ready"\nawait go\nleave 0 done'


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


def files(body: str, name: str = "demo", *directives: str) -> Files:
    lines = "\n".join(f"#SBATCH {directive}" for directive in directives)
    launch = {"version": 1, "name": name, "shutdown_timeout_s": 20}
    return Files(
        name,
        {
            "job.sh": SCRIPT.format(directives=lines, body=body),
            "launch.json": json.dumps(launch),
            "trainer.json": json.dumps({"steps": 7}),
        },
    )


@dataclass
class CountingSite(LocalSite):
    """This machine, with a note of Slurm's commands that were run."""

    environ: Mapping[str, str]
    ran: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        if argv[0] == "sh" and len(argv) > 4 and argv[4].startswith("s"):
            self.ran.append(argv[4])
        return super().run(argv, stdin=stdin, timeout_s=timeout_s)


@dataclass
class Runs:
    """Runs of one cluster below one root."""

    cluster: Cluster
    root: Path
    workdir: Path

    @property
    def backend(self) -> SlurmBackend:
        return SlurmBackend(LocalSite(self.cluster.environ))

    def submit(
        self,
        body: str,
        name: str = "demo",
        *directives: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        return self.backend.submit(
            files(body, name, *directives),
            runs_root=self.root,
            workdir=self.workdir,
            job_text="name: demo\n",
            fresh=fresh,
            after=after,
        )

    def start(self, body: str, name: str = "demo", *directives: str) -> Handle:
        """Submit a run that must start, and return its handle."""
        submission = self.submit(body, name, *directives)
        assert submission.started, submission.message
        return submission.handle

    def status(self, handle: Handle) -> Status:
        return self.backend.status([handle])[0]

    def wait_for(self, handle: Handle, *states: State) -> Status:
        wait_until(lambda: self.status(handle).state in states, f"{states}, not {handle}")
        return self.status(handle)

    def wait_ready(self, handle: Handle, attempt: int = 1) -> None:
        ready = handle.run_dir / f"attempts/{attempt}/ready"
        wait_until(ready.exists, f"{ready}: {self.status(handle)}")

    def hurry(self, handle: Handle, attempt: int) -> bool:
        """Whether the attempt has started. Slurm would hold a requeued job back for two minutes,
        and begins them anew when the last of the former run is over."""
        if "BeginTime" in self.status(handle).reason:
            self.cluster.client("scontrol", "update", f"JobId={job(handle)}", "StartTime=now")
        return (handle.run_dir / f"attempts/{attempt}/ready").exists()


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path) -> Runs:
    return Runs(cluster, tmp_path / "runs", tmp_path)


@pytest.fixture(params=["runs", "r u'n\"s %j%%\n$(x)`y` k=v,w ü#!"])
def any_runs(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Runs:
    """A runs root and a work folder with an ordinary and with a hostile name."""
    workdir = tmp_path / f"work {request.param}"
    workdir.mkdir()
    return Runs(cluster, tmp_path / str(request.param), workdir)


def job(handle: Handle) -> str:
    return handle.ids["job"]


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
    other = Runs(cluster, tmp_path / "other", tmp_path)
    second = other.start(DONE)
    assert "Dependency: waits for another job" in runs.status(second).reason
    (first.run_dir / "attempts/1/go").touch()
    other.wait_for(second, State.DONE)


def test_a_failure_has_the_attempts_reason(runs: Runs) -> None:
    handle = runs.start("leave 1 'rank 1 on node 0: boom'")
    failed = runs.wait_for(handle, State.FAILED)
    assert failed == Status("demo", State.FAILED, 1, "rank 1 on node 0: boom", 3, 7)


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


def test_a_requeued_run_is_restarting(runs: Runs) -> None:
    body = f"if [[ $n != 0 ]]; then\n{WAITS}\nfi\n"
    body += """echo '{"reason": "preempted"}' >$attempt/end.json\n"""
    handle = runs.start(body + 'scontrol requeue "$SLURM_JOB_ID"', "demo", "--requeue")
    runs.wait_for(handle, State.RESTARTING)
    words = "preempted; BeginTime: its earliest start has not come"
    wait_until(lambda: runs.status(handle).reason.startswith(words), words)
    assert runs.status(handle).state is State.RESTARTING
    assert not runs.submit(DONE).started
    wait_until(lambda: runs.hurry(handle, attempt=2), "the second attempt")
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


def test_an_array_is_one_run_and_each_element_has_a_state(runs: Runs) -> None:
    body = 'touch "$run/at-$SLURM_ARRAY_TASK_ID"\nuntil [[ -e $run/go ]]; do sleep 0.1; done\n'
    body += "exit $((SLURM_ARRAY_TASK_ID == 2))"
    handle = runs.start(body, "sweep", "--array=0-3%2", "--output=/dev/null")
    wait_until((handle.run_dir / "at-1").exists, "two elements")
    status = runs.wait_for(handle, State.RUNNING)
    assert status.reason == "of 4 elements: 2 RUNNING, 2 PENDING"
    (handle.run_dir / "go").touch()
    wait_until(lambda: runs.status(handle).state.is_final, "the end of all")
    assert runs.status(handle).reason == "of 4 elements: 1 FAILED, 3 DONE"
    elements = [
        Handle("slurm", "sweep", handle.run_dir, {"job": f"{job(handle)}_{i}"}) for i in range(4)
    ]
    states = [status.state for status in runs.backend.status(elements)]
    assert states == [State.DONE, State.DONE, State.FAILED, State.DONE]


REFUSED = [
    ("--partition=nope", "Invalid partition name specified", "`sinfo -s` lists them"),
    ("--gpus-per-node=99", "Requested node configuration is not available", "compare resources"),
    ("--gres=foo:1", "Invalid generic resource (gres) specification", "no such GPU type"),
    ("--mem=9999G", "Memory specification can not be satisfied", "compare resources.memory"),
    ("--constraint=nope", "Invalid feature specification", "no node has that constraint"),
    ("--reservation=nope", "reservation is invalid", "scontrol show reservation"),
    ("--time=1x", "Invalid --time specification", "Slurm refused demo"),
]


@pytest.mark.parametrize(("directive", "words", "advice"), REFUSED)
def test_what_slurm_refuses_is_said_with_what_to_do(
    runs: Runs, directive: str, words: str, advice: str
) -> None:
    with pytest.raises(BackendError) as caught:
        runs.submit(DONE, "demo", directive)
    assert words in str(caught.value)
    assert advice in str(caught.value)
    assert runs.backend.list(runs.root) == []
    runs.wait_for(runs.start(DONE), State.DONE)


def test_the_online_check_asks_and_sends_nothing(runs: Runs) -> None:
    answer = runs.backend.online_check(files(DONE))
    assert "to start at" in answer
    with pytest.raises(BackendError, match=r"demo would be refused: .*not available"):
        runs.backend.online_check(files(DONE, "demo", "--nodes=99"))
    assert runs.cluster.client("squeue", "-h") == ""
    assert not runs.root.exists()


def test_a_submit_inside_a_job_is_as_one_outside(runs: Runs) -> None:
    outer = {
        "SLURM_JOB_ID": "1", "SLURM_NNODES": "3", "SLURM_NTASKS": "6", "SBATCH_PARTITION": "nope",
        "SLURM_CLUSTERS": "nope", "SQUEUE_FORMAT": "%A", "SQUEUE_STATES": "FAILED",
        "SACCT_FORMAT": "JobID", "MASTER_ADDR": "outer", "WORLD_SIZE": "6", "RANK": "2",
        "PET_NNODES": "3", "SLURM_EXPORT_ENV": "NONE", "MINE": "a\n$(b),'",
    }  # fmt: skip
    backend = SlurmBackend(LocalSite({**runs.cluster.environ, **outer}))
    submission = backend.submit(
        files('env -0 >"$run/seen"\n' + DONE),
        runs_root=runs.root,
        workdir=runs.workdir,
        job_text="",
    )
    handle = submission.handle
    wait_until(lambda: backend.status([handle])[0].state is State.DONE, "its end")
    seen = dict(e.split("=", 1) for e in (handle.run_dir / "seen").read_text().split("\0")[:-1])
    assert seen["MINE"] == outer["MINE"]
    assert (seen["SLURM_NNODES"], seen["SLURM_JOB_ID"]) == ("1", job(handle))
    assert not {"MASTER_ADDR", "WORLD_SIZE", "RANK", "PET_NNODES", "SBATCH_PARTITION"} & set(seen)


def test_many_runs_by_two_commands(runs: Runs) -> None:
    handles = [runs.start(DONE, f"run-{i}", "--hold") for i in range(5)]
    site = CountingSite(runs.cluster.environ)
    backend = SlurmBackend(site)
    gone = Handle("slurm", "gone", handles[0].run_dir, {"job": "99999", "cluster": ""})
    statuses = backend.status([*backend.list(runs.root), gone])
    assert [s.run for s in statuses] == [f"run-{i}" for i in range(5)] + ["gone"]
    assert [s.state for s in statuses] == [State.QUEUED] * 5 + [State.LOST]
    assert site.ran == ["squeue", "sacct"]
    site.ran.clear()
    assert backend.status([]) == []
    assert backend.list(runs.root / "nothing") == []
    assert site.ran == []


def test_a_backslash_in_the_runs_root_is_refused(runs: Runs, tmp_path: Path) -> None:
    runs.root = tmp_path / "a\\b"
    with pytest.raises(UserError, match="choose a runs root without one"):
        runs.submit(DONE)
    assert not runs.root.exists()


def test_a_work_folder_that_is_not_there_is_refused(runs: Runs, tmp_path: Path) -> None:
    runs.workdir = tmp_path / "nope"
    with pytest.raises(UserError, match=r"no folder .*nope"):
        runs.submit(DONE)


def test_a_run_of_another_backend_is_left_alone(runs: Runs) -> None:
    handle = runs.start(DONE)
    runs.wait_for(handle, State.DONE)
    receipt = read(handle.run_dir / "receipt.json") | {"backend": "local"}
    (handle.run_dir / "receipt.json").write_text(json.dumps(receipt))
    for call in (lambda: runs.submit(DONE), lambda: runs.backend.handle(handle.run_dir)):
        with pytest.raises(BackendError, match="a run of the backend 'local', not 'slurm'"):
            call()
    assert runs.backend.list(runs.root) == []
    with pytest.raises(UserError, match="is no run: it has no receipt"):
        runs.backend.handle(runs.root)


def test_without_accounting_and_when_slurm_forgets_or_is_silent(
    state_dir: Path, tmp_path: Path
) -> None:
    own = Cluster(state_dir, 1)
    own.dev("up", "1")
    runs = Runs(own, tmp_path / "runs", tmp_path)
    done, failed = runs.start(DONE, "done"), runs.start("leave 78 'no data'", "failed")
    cut = runs.start(WAITS, "cut")
    handles = [done, failed, cut]
    for handle, state in zip(handles, (State.DONE, State.FAILED, State.RUNNING), strict=True):
        runs.wait_for(handle, state)
    own.dev("down")
    silent = runs.backend.status(handles)
    assert [s.state for s in silent] == [State.DONE, State.UNKNOWN, State.UNKNOWN]
    assert "cannot ask for jobs" in silent[1].reason
    for file in (state_dir / "state").glob("**/job_state*"):
        file.unlink()
    own.dev("up", "1")
    forgotten = runs.backend.status(handles)
    assert [s.state for s in forgotten] == [State.DONE, State.FAILED, State.LOST]
    assert forgotten[1].reason == "no data"
    # Ids begin anew: the first job now has the id of a run of ours, and is not it.
    other = own.sbatch("sleep 600", output=tmp_path / "log")
    assert other in {job(handle) for handle in handles}
    assert runs.backend.status(handles) == forgotten


def test_what_slurmctld_has_forgotten_is_asked_of_the_accounting(
    state_dir: Path, tmp_path: Path
) -> None:
    own = Cluster(state_dir, 1)
    own.dev("up", "1", "--acct")
    runs = Runs(own, tmp_path / "runs", tmp_path)
    failed = runs.start("exit 3", "failed")
    killed = runs.start(WAITS, "killed")
    runs.wait_for(failed, State.FAILED)
    runs.wait_ready(killed)
    own.client("scancel", job(killed))
    runs.wait_for(killed, State.CANCELLED)
    ended = ("sacct", "-n", "-P", "-X", "-o", "State", "-j", f"{job(failed)},{job(killed)}")
    wait_until(
        lambda: own.client(*ended).split("\n")[:2] == ["FAILED", "CANCELLED by 0"], "sacct's word"
    )
    # What is not yet with slurmdbd would be sent again, and make the jobs new ones.
    wait_until(lambda: "DBD Agent queue size: 0" in own.client("sdiag"), "all is accounted")
    own.dev("down")
    for file in (state_dir / "state").glob("**/job_state*"):
        file.unlink()
    own.dev("up", "1", "--acct")
    states = runs.backend.status([failed, killed])
    assert [(s.state, s.reason) for s in states] == [
        (State.FAILED, f"exit code 3; see logs/slurm-{job(failed)}.log"),
        (State.CANCELLED, "submit it again to continue"),
    ]
