"""Real training on a real Slurm, hit in the middle: what comes out is what an undisturbed run on
the local backend gives, losses of every step and bits of the state. Nothing is left on any node."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.backends.base import State
from running import read
from slurm.cluster import Cluster

pytest.importorskip("torch")

from slurm.training import JOB, Outcome, Training, at, outcome

pytestmark = pytest.mark.timeout(600)


@pytest.mark.case("L12", "L13", "L15", "L20")
def test_faults_of_processes_signals_and_preemption(
    cluster: Cluster, straight: Outcome, tmp_path: Path
) -> None:
    acts = [
        at(1, 2, 2, "kill rank"),
        at(2, 3, 5, "kill agent"),
        at(3, 2, 6, "kill node"),
        at(4, 1, 4, "wait"),
        at(5, 3, 6, "wait"),
        at(6, 0, 8, "wait"),
    ]
    training = Training.submitted(cluster, tmp_path, acts)
    for restart in (1, 2, 3):
        training.go_on(restart)

    training.wait_for(4, "waiting")
    cluster.client("scancel", "--signal=USR1", "--batch", training.job)
    training.go_on(4)

    training.wait_for(5, "waiting")
    cluster.client("scontrol", "requeue", training.job)
    training.go_on(5)

    training.wait_for(6, "waiting")
    urgent = cluster.sbatch(
        "sleep 600", "-purgent", "-N4", "--exclusive", output=tmp_path / "urgent.log"
    )
    cluster.wait_for_state(urgent, "RUNNING")
    cluster.client("scancel", urgent)
    training.go_on(6)

    training.ends(State.DONE)
    codes = training.codes()
    # What leaves slowly on a busy machine is killed 5 s after TERM, with all that counts done.
    assert [code for code in codes if code is not None and code != 75] == [1, 1, 1, 0], codes
    for attempt in (4, 5, 6):
        assert read(training.attempt(attempt) / "outcome.json")["outcome"] == "drained"
    # Restarts that Slurm makes by itself are not there.
    asked = (training.run_dir / "slurm-requeues").read_text().splitlines()
    assert [line.split()[1] for line in asked] == ["1", "1", "1", "75"]
    training.assert_one_run(7)
    assert outcome(training.run_dir) == straight


def test_a_cancel_of_four_nodes_and_their_end(
    cluster: Cluster, straight: Outcome, tmp_path: Path
) -> None:
    text = JOB.replace("nodes: 2, ranks_per_node: 2", "nodes: 4, ranks_per_node: 1")
    training = Training.submitted(cluster, tmp_path, [at(1, 3, 5, "wait")], text)
    training.wait_for(1, "waiting")
    assert "CANCELLED" in training.backend.cancel(training.handle)
    training.ends(State.CANCELLED)
    assert cluster.scontrol(training.job)["JobState"] == "CANCELLED"
    assert training.codes() == [75]
    assert training.checkpoints()[-1] == "step-000000007-attempt-00001"
    first = training.job
    training.submit()
    training.ends(State.DONE)
    assert training.codes() == [75, 0]
    assert training.attempts() == [f"{first}.0", f"{training.job}.0"]
    assert outcome(training.run_dir) == straight


@pytest.mark.slurm24
def test_the_launcher_srun(cluster: Cluster, straight: Outcome, tmp_path: Path) -> None:
    acts = [at(1, 3, 6, "kill rank"), at(2, 2, 7, "wait")]
    training = Training.submitted(cluster, tmp_path, acts, JOB + "launcher: srun\n")
    training.go_on(1)
    training.wait_for(2, "waiting")
    cluster.client("scancel", "--signal=USR1", "--batch", training.job)
    training.go_on(2)
    training.ends(State.DONE)
    assert training.codes() == [1, 75, 0], training.logs()
    training.assert_one_run(3)
    assert outcome(training.run_dir) == straight


def test_a_configuration_error_is_not_repeated(cluster: Cluster, tmp_path: Path) -> None:
    text = JOB.replace("python_docs: true", "text: no/such/*.txt")
    training = Training.submitted(cluster, tmp_path, [], text)
    assert "no/such/*.txt" in training.ends(State.FAILED).reason
    shown = cluster.scontrol(training.job)
    assert (shown["JobState"], shown["ExitCode"], shown["Restarts"]) == ("FAILED", "78:0", "0")
    assert training.codes() == [78], training.logs()
    training.assert_one_run(1)
