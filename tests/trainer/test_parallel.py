"""Every strategy gives the same training as one process with the whole batch, and resumes equal.

On 4 ranks: with 2 a sum cannot depend on the order of the ranks. Each step has 4 micro-batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import Run, configuration

STEPS = 12
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "no_shard": {"strategy": "no_shard"},
    "full_shard": {"strategy": "full_shard"},
    "full_shard, each": {
        "strategy": "full_shard", "gradient_sync": "each", "fsdp__reshard_after_forward": 2,
    },
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "hybrid_shard": {"strategy": "hybrid_shard", "shard_group": 2},
    "tensor": {"strategy": "full_shard", "tensor": 2},
    "hybrid tensor": {"strategy": "hybrid_shard", "shard_group": 1, "tensor": 2},
    "1 full_shard": {"strategy": "full_shard", "fsdp__version": 1},
    "1 shard_grad_op": {"strategy": "shard_grad_op", "fsdp__version": 1},
    "1 hybrid_shard": {"strategy": "hybrid_shard", "shard_group": 2, "fsdp__version": 1},
    "1 no_shard": {"strategy": "no_shard", "fsdp__version": 1},
}  # fmt: skip


def job(parallelism: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """4 ranks, 16 samples a step in 4 micro-batches, 7 windows to validate on."""
    given = {f"parallelism__{key}": value for key, value in parallelism.items()}
    batch = {"micro": parallelism.get("tensor", 1), "accumulation": 4}
    base = {
        "num_ranks": 4, "steps": STEPS, "batch": batch, "checkpoint__every_steps": STEPS // 2,
        "model__layers": 2, "logging__every": 1, "data__validation_fraction": 0.015,
    }  # fmt: skip
    return configuration(**{**base, **given, **changes})


def again(run: Run) -> None:
    """Make a finished run one that was killed after half of its steps."""
    (run.run_dir / "DONE").unlink()
    (run.checkpoint_dir / run.checkpoints()[-1] / "manifest.json").unlink()


def norms(run: Run) -> list[float]:
    return [line["grad_norm"] for line in run.metrics() if "lr" in line]


def validation(run: Run) -> list[float]:
    return [event["loss"] for event in run.events("validation")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, the whole batch at once."""
    run = Run(tmp_path_factory.mktemp("alone"))
    batch = {"micro": 16, "accumulation": 1}
    assert run.finish(job({}, num_ranks=1, batch=batch)) == "done"
    return run


@pytest.mark.case("T01", "T10", "T12")
@pytest.mark.parametrize("name", STRATEGIES)
def test_it_trains_as_one_process_does_and_resumes_equal(
    alone: Run, tmp_path: Path, name: str
) -> None:
    run, config = Run(tmp_path), job(STRATEGIES[name])
    assert run.finish(config) == "done"
    assert run.losses() == pytest.approx(alone.losses(), rel=1e-6)
    assert norms(run) == pytest.approx(norms(alone), rel=1e-6)
    assert validation(run) == pytest.approx(validation(alone), rel=1e-6)
    digest = run.digest()
    again(run)
    assert run.finish(config, attempt=2) == "done"
    assert run.events("start")[1]["resumed_from"] == f"step-{STEPS // 2:09d}-attempt-00001"
    assert run.digest() == digest
    assert len(run.losses()) == STEPS  # losses() compares those of steps that were made twice


def test_it_goes_on_with_any_other_strategy_and_format(alone: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    names = ["ddp", "tensor", "1 hybrid_shard", "hybrid_shard", "1 full_shard", "shard_grad_op"]
    for attempt, name in enumerate(names, 1):
        changes = {"steps": 2 * attempt, "schedule__kind": "constant"}
        changes["checkpoint__format"] = ("sharded", "full", "both")[attempt % 3]
        assert run.finish(job(STRATEGIES[name], **changes), attempt=attempt) == "done"
        (run.run_dir / "DONE").unlink()
    told = [change["key"] for change in run.events("changed")[0]["changes"]]
    assert {"parallelism.strategy", "parallelism.tensor"} <= set(told)
    straight = Run(tmp_path / "straight")
    straight.finish(job({}, steps=12, schedule__kind="constant"))
    assert run.losses() == pytest.approx(straight.losses(), rel=1e-6)
