"""Sweeps on a real Slurm: states, limits, requeue, cancel, submit again, by ssh too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.backends.base import After, Handle, State
from orchestrator.backends.remote import SshSite
from orchestrator.backends.site import LocalSite
from orchestrator.cli import orchestrate
from orchestrator.errors import UserError
from running import read, wait_until
from slurm import sshd
from slurm.backend_runs import DONE, CountingSite, files
from slurm.cluster import Cluster
from slurm.sweeping import RUN_TIMEOUT_S, Sweeps, job_ids, most_at_once, rendered


@pytest.fixture(params=["runs", "r u'n\"s %j%%a\n$(x)`y` k=v,w ü#!"], ids=["plain", "hostile"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / str(request.param)
    made.mkdir()
    return made


@pytest.fixture
def sweeps(cluster: Cluster, tmp_path: Path) -> Sweeps:
    return Sweeps(cluster, tmp_path, CountingSite(cluster.environ))


TWENTY = {
    "grid": {"train.optimizer.lr": [0.25, 0.5], "train.seed": list(range(10))},
    "at_once": 4,
}


def test_twenty_elements_four_at_once_and_one_requeued_alone(
    sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = {0: "meet", 1: "meet", 2: "meet", 3: "meet", 7: "fail"}
    handle = sweeps.start(TWENTY, acts)
    job = handle.ids["job"]
    again = [7, 17]  # those with the seed that fails at first
    for number in again:
        sweeps.wait_ready(handle, number)
        sweeps.cluster.wait_for_state(f"{job}_{number}", "PENDING")
    others = [n for n in range(20) if n not in again]
    wait_until(
        lambda: {sweeps.states(handle)[n] for n in others} == {State.DONE}, "18", RUN_TIMEOUT_S
    )
    assert {sweeps.states(handle)[n] for n in again} == {State.RESTARTING}
    assert (
        sweeps.rows(handle)[7]
        .status.reason.partition(": ")[2]
        .startswith("it ended with code 3; BeginTime: its earliest start")
    )
    assert not sweeps.submit(TWENTY).started
    sweeps.ran.clear()
    words = "of 20 elements: 2 RESTARTING, 18 DONE"
    assert sweeps.backend.status([handle])[0].reason == words
    assert len(sweeps.ran) <= 2
    for number in again:
        sweeps.cluster.client("scontrol", "update", f"JobId={job}_{number}", "StartTime=now+2")
    sweeps.wait_for_end(handle)

    rows = sweeps.rows(handle)
    assert [row.status.state for row in rows] == [State.DONE] * 20
    assert [row.status.attempt for row in rows] == [2 if n in again else 1 for n in range(20)]
    assert [row.handle.ids["job"] for row in rows] == job_ids(handle)
    assert rows[13].values == {"train.optimizer.lr": 0.5, "train.seed": 3}
    assert (rows[13].loss, rows[13].best_validation_loss) == (2.5, 1.5)
    assert most_at_once(handle.run_dir) == 4
    owners = [read(row.handle.run_dir / "attempts/1/owner.json")["job"] for row in rows]
    assert owners == [f"{id_}.0" for id_ in job_ids(handle)]
    for row in rows:
        (log,) = (row.handle.run_dir / "logs").glob("slurm-*.log")
        assert log.name == f"slurm-{row.handle.ids['job']}.log"
    assert {p.name for p in handle.run_dir.glob("*/slurm-requeues")} == {"slurm-requeues"}
    assert len(list(handle.run_dir.glob("*/slurm-requeues"))) == 2
    assert not sweeps.submit(TWENTY).started
    _shown_on_the_command_line(sweeps, monkeypatch)


def _shown_on_the_command_line(sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, sweeps.cluster.environ[name])
    file = sweeps.folder / "clusters.yaml"
    profile = {"target": "slurm", "runs_root": str(sweeps.folder / "runs")}
    file.write_text(json.dumps({"clusters": {"dev": profile}}))

    def run(*argv: str) -> str:
        options = ["--cluster", "dev", "--clusters", str(file)]
        result = CliRunner().invoke(orchestrate, [*argv, *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    lines = run("status", "tune").splitlines()
    assert lines[1].split(maxsplit=4) == ["tune", "DONE", "-", "-", "of 20 elements: 20 DONE"]
    assert lines[3] == "tune, of 20 elements: 20 DONE"
    assert lines[4].split() == ["ELEMENT", "lr", "seed", "STATE", "ATTEMPT", "STEP", "LOSS",
                                "BEST", "VALIDATION"]  # fmt: skip
    assert lines[12].split() == ["7", "0.25", "7", "DONE", "2", "7/7", "2.2500", "1.2500"]
    (told,) = json.loads(run("status", "tune", "--json"))
    assert told["elements"][13] == {
        "run": "tune/13", "run_dir": str(sweeps.folder / "runs/tune/13"), "state": "DONE",
        "attempt": 1, "reason": "done", "step": 7, "steps": 7, "element": 13,
        "values": {"train.optimizer.lr": 0.5, "train.seed": 3}, "loss": 2.5,
        "best_validation_loss": 1.5,
    }  # fmt: skip
    assert "tune/7  DONE   2        7/7   done" in run("status", "tune/7")
    assert len(run("list").splitlines()) == 2
    assert "tune/7  DONE   2        7/7   done" in run("status", str(sweeps.folder / "runs/tune/7"))
    with pytest.raises(UserError, match="give one of its elements, tune/0 to tune/19"):
        run("logs", "tune")


SIX = {"list": [{"train.seed": seed} for seed in range(6)], "at_once": 2}


def test_cancel_and_submit_again(cluster: Cluster, folder: Path) -> None:
    sweeps = Sweeps(cluster, folder, CountingSite(cluster.environ))
    acts = dict.fromkeys(range(1, 6), "drain")
    handle = sweeps.start(SIX, acts)
    sweeps.wait_ready(handle, 1, 2)
    one = sweeps.rows(handle)[2].handle
    assert sweeps.backend.handle(one.run_dir) == one
    assert "tune/2: CANCELLED (drained" in sweeps.backend.cancel(one)
    sweeps.wait_ready(handle, 3)
    answer = sweeps.backend.cancel(handle)
    assert answer == "tune: CANCELLED (of 6 elements: 5 CANCELLED, 1 DONE)"
    drained = [n for n in (1, 2, 3) if read(handle.run_dir / f"{n}/attempts/1/end.json")["code"]]
    assert drained == [1, 2, 3]
    assert not list(handle.run_dir.glob("[45]/attempts/*"))
    (folder / "go").touch()
    again = sweeps.submit(SIX, acts)
    assert again.message.endswith("5 of 6 elements")
    sweeps.wait_for_end(again.handle)
    rows = sweeps.rows(again.handle)
    assert [row.status.attempt for row in rows] == [1, 2, 2, 2, 1, 1]
    assert {row.status.state for row in rows} == {State.DONE}
    assert rows[0].handle.ids["job"] == f"{handle.ids['job']}_0"
    assert rows[1].handle.ids["job"] == f"{again.handle.ids['job']}_1"
    assert most_at_once(handle.run_dir) <= 2


def test_a_sweep_by_ssh(cluster: Cluster, folder: Path) -> None:
    if reason := sshd.missing():
        pytest.skip(reason)
    environ = {name: cluster.environ[name] for name in ("PATH", "SLURM_CONF")}
    with sshd.running_sshd(environ) as server:
        sweeps = Sweeps(cluster, folder, SshSite(sshd.HOST, server.command()))
        handle = sweeps.start(SIX, {2: "drain"})
        sweeps.wait_ready(handle, 2)
        wait_until(lambda: sweeps.states(handle).count(State.DONE) == 5, "the others")
        assert sweeps.rows(handle) == Sweeps(cluster, folder, LocalSite(cluster.environ)).rows(
            handle
        )
        answer = sweeps.backend.cancel(handle)
        assert answer == "tune: CANCELLED (of 6 elements: 1 CANCELLED, 5 DONE)"
        (folder / "go").touch()
        assert sweeps.submit(SIX).message.endswith("1 of 6 elements")
        sweeps.wait_for_end(handle)
        assert {row.loss for row in sweeps.rows(handle)} == {2.0003}


def test_what_a_sweep_may_become(sweeps: Sweeps) -> None:
    first = {"list": [{"train.seed": 1}, {"train.seed": 2}]}
    handle = sweeps.start(first, {})
    sweeps.wait_for_end(handle)
    with pytest.raises(UserError, match=r"element 1 of tune was train\.seed=2, and would be"):
        sweeps.submit({"list": [{"train.seed": 1}, {"train.seed": 3}]})
    with pytest.raises(UserError, match="it was a sweep, and would be a single run now"):
        sweeps.submit(None)
    longer = sweeps.submit({"list": [*first["list"], {"train.seed": 3}]})
    assert longer.message.endswith("1 of 3 elements")
    sweeps.wait_for_end(longer.handle)
    assert sweeps.states(longer.handle) == [State.DONE] * 3
    fresh = sweeps.submit(None, fresh=True)
    assert "tune.old-1 now" in fresh.message
    wait_until(lambda: sweeps.backend.status([fresh.handle])[0].state is State.DONE, "the run")


def test_what_waits_for_a_sweep_and_lost_receipts(sweeps: Sweeps) -> None:
    two = {"list": [{"train.seed": 1}, {"train.seed": 2}]}
    handle = sweeps.start(two, {2: "drain"})
    sweeps.wait_ready(handle, 1)

    def next_run(name: str) -> Handle:
        submission = sweeps.backend.submit(
            files(DONE, name), runs_root=sweeps.folder / "runs", workdir=sweeps.folder,
            job_text="", after=[After("afterok", "tune")],
        )  # fmt: skip
        return submission.handle

    second = next_run("second")
    assert "Dependency" in sweeps.backend.status([second])[0].reason
    for lost in ("receipt.json", "1/receipt.json"):
        (handle.run_dir / lost).unlink()
    again = sweeps.submit(two, {2: "drain"})
    assert (again.started, again.handle) == (False, handle)
    assert sweeps.rows(handle)[1].handle.ids["job"] == f"{handle.ids['job']}_1"
    (sweeps.folder / "go").touch()
    for run in (second, next_run("third")):
        wait_until(lambda run=run: sweeps.backend.status([run])[0].state is State.DONE, run.run)  # type: ignore[misc]
    assert sweeps.states(handle) == [State.DONE] * 2


def test_a_thousand_elements(sweeps: Sweeps) -> None:
    many = {"grid": {"train.seed": list(range(1000))}}
    assert "to start at" in sweeps.backend.online_check(rendered(many, {}))
    handle = sweeps.start(many, {}, begin="now+1hour")
    sweeps.ran.clear()
    assert {row.status.state for row in sweeps.rows(handle)} == {State.PENDING}
    assert sweeps.ran == ["squeue"]
    answer = sweeps.backend.cancel(handle)
    assert answer == "tune: CANCELLED (of 1000 elements: 1000 CANCELLED)"
