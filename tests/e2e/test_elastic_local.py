"""A job with a range of nodes on the local backend: a node goes down and comes up again, and the
run is the same as one that nothing happens to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running import losses, wait_until

pytest.importorskip("torch")

import torch
from test_faults_local import JOB, RUN_TIMEOUT_S, Job, attempt_processes

from orchestrator.backends.base import State
from orchestrator.backends.record import Record
from orchestrator.backends.simulated import set_node
from orchestrator.contract import RunPaths
from trainer import sample_log

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
EVERY, STEPS = 4, 14
# No dropout: what ranks draw depends on how many there are.
ELASTIC = (
    JOB.replace("nodes: 2, ranks_per_node: 2", "nodes: {min: 1, max: 2}, ranks_per_node: 1")
    .replace("args: {width: 32, context: 32}", "args: {width: 32, context: 32, dropout: 0.0}")
    .replace("steps: 12", f"steps: {STEPS}")
    .replace("tensorboard: false", "tensorboard: false, samples: true")
)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[tuple[Job, Job]]:
    """A run that nothing happens to, and another of the same job."""
    pair = Job(tmp_path / "straight", text=ELASTIC), Job(tmp_path / "work", text=ELASTIC)
    yield pair
    for job in pair:
        job.close()


@pytest.mark.case("T06")
def test_two_nodes_then_one_then_two_are_equal_to_two(jobs: tuple[Job, Job]) -> None:
    straight, job = jobs
    assert straight.run().state is State.DONE, straight.logs()
    job.folder.mkdir()
    plan = [
        {"attempt": 1, "rank": 1, "phase": "step", "step": 6, "act": "hold"},
        {"attempt": 2, "rank": 0, "phase": "step", "step": 9, "act": "wait"},
    ]
    (job.folder / "act.json").write_text(json.dumps(plan))
    handle = job.submit()
    wait_for(handle.run_dir / "attempts/1/waiting")
    assert "an attempt has 1 now" in set_node(handle.run_dir, 1, up=False)
    wait_for(handle.run_dir / "attempts/2/waiting")
    assert not attempt_processes(handle, 1)
    assert "an attempt has 2 now" in set_node(handle.run_dir, 1, up=True)
    assert job.wait(handle).state is State.DONE, job.logs()

    record = Record.read(handle.run_dir)
    assert record is not None
    assert [(ended.code, ended.nodes_lost) for ended in record.ended] == [(1, 1), (75, 0), (0, 0)]
    starts = events(handle.run_dir, "start")
    assert [start["world_size"] for start in starts] == [2, 1, 2]
    assert 6 - starts[1]["step"] <= EVERY  # steps that were made again after the node was lost
    drained = [end["step"] for end in events(handle.run_dir, "end") if end["outcome"] == "drained"]
    assert [starts[2]["step"]] == drained  # and none after the stop for the larger attempt
    assert_close(handle.run_dir, straight.run_dir)
    assert sample_log.check(handle.run_dir)[1] == []  # none twice, none skipped
    assert samples_by_step(handle.run_dir) == samples_by_step(straight.run_dir)


def samples_by_step(run_dir: Path) -> dict[int, dict[int, list[int]]]:
    """The samples of each step by epoch, sorted: which rank takes which depends on the size."""
    steps = sample_log.history(sample_log.read_attempts(run_dir))
    return {
        step: {epoch: sorted(numbers.tolist()) for epoch, numbers in epochs.items()}
        for step, epochs in steps.items()
    }


def wait_for(path: Path) -> None:
    wait_until(path.exists, str(path), RUN_TIMEOUT_S)


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, RunPaths(run_dir).metrics.read_text().splitlines())
    return [line for line in lines if line.get("event") == name]


def assert_close(run_dir: Path, straight_dir: Path) -> None:
    """Every step was made with the same loss, and the last state is the same but for rounding."""
    found, expected = losses(run_dir), losses(straight_dir)
    assert sorted(found) == list(range(1, STEPS + 1))
    assert [found[s] for s in sorted(found)] == pytest.approx(
        [expected[s] for s in sorted(expected)], rel=1e-6
    )
    weights, others = last_weights(run_dir), last_weights(straight_dir)
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        # Adam moves a weight by up to the learning rate, 3e-4, however small its gradient is: that
        # sums are rounded otherwise may come to a tenth of one such step.
        torch.testing.assert_close(value, others[name], rtol=1e-4, atol=3e-5)


def last_weights(run_dir: Path) -> dict[str, Any]:
    (newest,) = sorted(run_dir.glob("checkpoints/step-*"))[-1:]
    loaded: dict[str, Any] = torch.load(newest / "model.pt", weights_only=True)
    return loaded


@pytest.mark.faults
@pytest.mark.case("L12")
def test_the_head_can_be_the_node_that_is_gone(jobs: tuple[Job, Job]) -> None:
    _, job = jobs
    job.act = {"rank": 1, "phase": "step", "step": 6, "act": "hold"}
    handle = job.submit()
    wait_for(handle.run_dir / "attempts/1/waiting")
    set_node(handle.run_dir, 0, up=False)
    assert job.wait(handle).state is State.DONE, job.logs()
    assert job.codes() == [1, 0]
    assert [start["world_size"] for start in events(handle.run_dir, "start")] == [2, 1]


def test_too_few_nodes_are_waited_for_and_not_for_ever(jobs: tuple[Job, Job]) -> None:
    _, job = jobs
    job.text = ELASTIC.replace("step: 60s", "step: 60s, start: 2s") + "attempts: {failures: 1}\n"
    (job.run_dir / "down-nodes").mkdir(parents=True)
    for node in (0, 1):
        (job.run_dir / "down-nodes" / str(node)).touch()
    final = job.run()
    assert final.state is State.FAILED
    assert "an attempt needs 1 nodes, and 0 are up" in final.reason
    assert job.codes() == [1, 1]
    assert RunPaths(job.run_dir).newest_attempt() == 0
