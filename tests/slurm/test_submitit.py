"""`launcher: submitit` on a real Slurm: the run is a job of submitit's, and ends like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.backends.base import State
from running import losses
from slurm.cluster import Cluster

pytest.importorskip("torch")
pytest.importorskip("submitit")

from slurm.training import JOB, STEPS, Act, Training, at

pytestmark = pytest.mark.timeout(600)
TEXT = JOB.replace("resources: {", "resources: {time_limit: 20m, ") + "launcher: submitit\n"


def submitted(cluster: Cluster, folder: Path, acts: list[Act]) -> Training:
    training = Training(cluster, folder / "it's a work folder", TEXT, acts)
    training.submit()
    return training


def result(training: Training) -> str:
    """What a notebook sees of the job, by submitit's own handle."""
    code = "import submitit, sys; job = submitit.SlurmJob(*sys.argv[1:])\n"
    code += "print(job.exception() or job.result())"
    argv = [sys.executable, "-c", code, f"{training.run_dir}/submitit", training.job]
    return subprocess.run(
        argv, env=training.cluster.environ, stdout=subprocess.PIPE, text=True, timeout=120,
        check=True,
    ).stdout.strip()  # fmt: skip


def test_submitits_signal_makes_a_checkpoint_and_submitit_requeues(
    cluster: Cluster, tmp_path: Path
) -> None:
    training = submitted(cluster, tmp_path, [at(1, 3, 5, "wait"), at(2, 2, 8, "kill rank")])
    training.wait_for(1, "waiting")
    cluster.client("scancel", "--signal=USR2", training.job)
    training.go_on(1)
    training.go_on(2)
    assert training.ends(State.DONE).step == STEPS
    assert training.codes() == [75, 1, 0], training.logs()
    assert training.attempts() == [f"{training.job}.{number}" for number in range(3)]
    assert sorted(losses(training.run_dir)) == list(range(1, STEPS + 1))
    first = training.run_dir / f"submitit/{training.job}_0_log.out"
    assert "Requeued job" in first.read_text()
    shown = cluster.scontrol(training.job)
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("COMPLETED", "0:0", "2")
    assert result(training) == "0"


def test_a_cancel_drains_and_a_configuration_error_is_not_repeated(
    cluster: Cluster, tmp_path: Path
) -> None:
    training = submitted(cluster, tmp_path, [at(1, 3, 5, "wait")])
    training.wait_for(1, "waiting")
    assert "CANCELLED" in training.backend.cancel(training.handle)
    training.ends(State.CANCELLED)
    assert training.codes() == [75]
    assert training.checkpoints()[-1] == "step-000000007-attempt-00001"
    training.text = TEXT.replace("python_docs: true", "text: no/such/*.txt")
    training.submit()
    assert "no/such/*.txt" in training.ends(State.FAILED).reason
    shown = cluster.scontrol(training.job)
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "78:0", "0")
    assert "has not produced any output (state: FAILED)" in result(training)
