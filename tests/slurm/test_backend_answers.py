"""The Slurm backend where Slurm refuses, forgets or is silent, and from elsewhere by ssh."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from orchestrator.backends.base import Handle, State, Status
from orchestrator.backends.remote import SshSite
from orchestrator.backends.site import LocalSite
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.errors import BackendError, UserError
from running import read, wait_until
from slurm import sshd
from slurm.backend_runs import (
    DONE,
    DRAINS,
    NAMES,
    WAITS,
    CountingSite,
    Runs,
    files,
    job,
    runs_below,
)
from slurm.cluster import Cluster


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path) -> Runs:
    return runs_below(cluster, tmp_path)


@pytest.fixture(params=NAMES)
def any_runs(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Runs:
    return runs_below(cluster, tmp_path, request.param)


REFUSED = [
    ("--partition=nope", "Invalid partition name specified", "`sinfo -s` lists them"),
    ("--gpus-per-node=99", "Requested node configuration is not available", "compare resources"),
    ("--gres=foo:1", "Invalid generic resource (gres) specification", "no such GPU type"),
    ("--mem=9999G", "Memory specification can not be satisfied", "compare resources.memory"),
    ("--constraint=nope", "Invalid feature specification", "no node has that constraint"),
    ("--reservation=nope", "reservation is invalid", "scontrol show reservation"),
    ("--time=1x", "Invalid --time specification", "Slurm refused demo"),
]


@pytest.mark.slurm24
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


@pytest.mark.slurm24
def test_the_online_check_asks_and_sends_nothing(runs: Runs) -> None:
    answer = runs.backend.online_check(files(DONE))
    assert "to start at" in answer
    with pytest.raises(BackendError, match=r"demo would be refused: .*not available"):
        runs.backend.online_check(files(DONE, "demo", "--nodes=99"))
    assert runs.cluster.client("squeue", "-h") == ""
    assert not runs.root.exists()


@pytest.mark.slurm24
@pytest.mark.case("L09")
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


@pytest.mark.slurm24
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


def test_from_a_laptop(any_runs: Runs) -> None:
    """The same by ssh from a login node, which is this machine here."""
    if reason := sshd.missing():
        pytest.skip(reason)
    runs = any_runs
    environ = {name: runs.cluster.environ[name] for name in ("PATH", "SLURM_CONF")}
    with sshd.running_sshd(environ) as server:
        backend = SlurmBackend(SshSite(sshd.HOST, server.command()))
        made = [
            backend.submit(
                files(body, name), runs_root=runs.root, workdir=runs.workdir, job_text="x\n"
            )
            for name, body in (("cut", DRAINS), ("done", DONE), ("cut", DRAINS))
        ]
        assert [s.started for s in made] == [True, True, False]
        cut, done, _ = (submission.handle for submission in made)
        runs.wait_ready(cut)
        runs.wait_for(done, State.DONE)
        handles = backend.list(runs.root)
        assert handles == [cut, done] == [backend.handle(h.run_dir) for h in handles]
        assert backend.cancel(cut) == "cut: CANCELLED (drained; submit it again to continue)"
        assert backend.status(handles) == runs.backend.status(handles)
        assert backend.status(handles)[1] == Status("done", State.DONE, 1, "done", 3, 7)
        assert backend.run_store(done).read("job.yaml") == b"x\n"
        assert "to start at" in backend.online_check(files(DONE))
        again = backend.submit(
            files(DONE, "done"), runs_root=runs.root, workdir=runs.workdir, job_text="x\n",
            fresh=True,
        )  # fmt: skip
        assert "done.old-1 now" in again.message


def test_without_accounting_and_when_slurm_forgets_or_is_silent(
    state_dir: Path, tmp_path: Path
) -> None:
    own = Cluster(state_dir, 1)
    own.dev("up", "1")
    runs = runs_below(own, tmp_path)
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


@pytest.mark.slurm24
def test_what_slurmctld_has_forgotten_is_asked_of_the_accounting(
    state_dir: Path, tmp_path: Path
) -> None:
    own = Cluster(state_dir, 1)
    own.dev("up", "1", "--acct")
    runs = runs_below(own, tmp_path)
    failed = runs.start("exit 3", "failed")
    killed = runs.start(WAITS, "killed")
    runs.wait_for(failed, State.FAILED)
    runs.wait_ready(killed)
    own.client("scancel", job(killed))
    runs.wait_for(killed, State.CANCELLED)
    asked = ("sacct", "-n", "-P", "-X", "-o", "JobName,State", "-j", f"{job(failed)},{job(killed)}")

    def is_accounted() -> bool:
        # A job that ends soon after its start is named `allocation` until slurmctld has told its
        # start too, up to 5 s later.
        return own.client(*asked) == "failed|FAILED\nkilled|CANCELLED by 0\n"

    wait_until(is_accounted, "sacct's word")
    # At once, as in a power failure of the head: what sacct has said is to be there afterwards.
    os.killpg(int((state_dir / "run/head.pid").read_text().split()[0]), signal.SIGKILL)
    own.dev("down")
    for file in (state_dir / "state").glob("**/job_state*"):
        file.unlink()
    own.dev("up", "1", "--acct")
    assert own.client("squeue", "-h", "-t", "all") == ""
    expected = [
        (State.FAILED, f"exit code 3; see logs/slurm-{job(failed)}.log"),
        (State.CANCELLED, "submit it again to continue"),
    ]

    def states() -> list[tuple[State, str]]:
        return [(s.state, s.reason) for s in runs.backend.status([failed, killed])]

    # slurmdbd answers without the jobs for a moment after it has started.
    wait_until(lambda: states() == expected, "the states from the accounting")
