"""Nodes that go away in the middle of a training run: one without power, one without network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.backends.base import State
from running import read
from slurm.cluster import Cluster

pytest.importorskip("torch")

from slurm.training import JOB, KILL_WAIT_S, Outcome, Training, at, outcome
from trainer.node import FAILURE_GRACE_S

pytestmark = pytest.mark.timeout(900)
BACK_S = 120.0  # until Slurm has seen a healed node again and ended what it has still of the job


@pytest.mark.case("L12", "L44")
def test_a_power_failure_and_a_cut(cluster: Cluster, straight: Outcome, tmp_path: Path) -> None:
    acts = [at(1, 1, 6, "wait"), at(2, 0, 8, "outlive", "publish")]
    text = JOB + "attempts: {failures: 0}\n"  # a lost node is no failure of the run
    training = Training.submitted(cluster, tmp_path, acts, text)
    training.wait_for(1, "waiting")
    cluster.dev("kill", "node2")
    training.go_on(1, gone=True)

    training.wait_for(2, "waiting")
    host = cluster.scontrol(training.job)["BatchHost"]
    cluster.dev("cut", host)
    training.wait_requeued(2)
    cluster.start_now(training.job, gone=True)
    training.wait_for(3, "owner.json")
    # The node that was cut lives on, with a checkpoint about to be published. Its rank finds that
    # it is superseded, unless its node.py has missed the other node before, after a minute.
    assert training.ends_at_last() is State.DONE, training.logs()
    # Of the attempt that was cut only the script and its srun wait on, for Slurm's word. Its
    # node.py has waited for the other node's result, that long after its own rank's failure.
    grace_s = FAILURE_GRACE_S + 2 * KILL_WAIT_S
    training.nothing_is_left(besides=("/bin/bash ", "srun "), timeout_s=grace_s)
    ended = read(training.attempt(2) / "end.json")
    assert re.search("attempt 2 is superseded|the node was lost", ended["reason"]), ended
    cluster.dev("heal", host)
    training.nothing_is_left(timeout_s=BACK_S)
    assert training.ends_at_last() is State.DONE
    training.assert_one_run(3)
    assert training.codes()[-1] == 0
    assert not (training.run_dir / "slurm-requeues").exists()
    assert not [name for name in training.checkpoints() if name.endswith("-00002")]
    assert outcome(training.run_dir) == straight
