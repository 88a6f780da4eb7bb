"""Whole runs in which a step is no number: it is named, left out or the end, and never saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import LEARNED, Run, configuration
from trainer import checkpoint
from trainer.nonfinite import FP16_LIMIT

STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "full_shard"},
    {"strategy": "hybrid_shard", "shard_group": 2},
]


def poisoned(*steps: int, gradient_only: bool = False, **changes: Any) -> dict[str, Any]:
    """Two ranks and four steps; rank 1 has no number in `steps`."""
    args = {"steps": list(steps), "rank": 1, "gradient_only": gradient_only}
    defaults = {
        "checkpoint__every_steps": 1,
        "checkpoint__keep": 1,
        "parallelism__wrap__by": "size",
    }
    return configuration(
        steps=4, model__factory="models:poisoned", model__args=args, **defaults | changes
    )


def ids(value: Any) -> str:
    return ",".join(f"{key}={part}" for key, part in value.items())


@pytest.mark.case("T29")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=ids)
def test_a_step_that_is_no_number_is_not_saved_and_the_last_good_one_stays(
    tmp_path: Path, strategy: dict[str, Any]
) -> None:
    run = Run(tmp_path)
    config = poisoned(3, num_ranks=4)
    config["parallelism"] |= strategy
    ended = run.start(config)
    assert [end.value for end in ended] == [1] * 4
    assert {error["kind"] for error in run.errors()} == {"configuration"}
    words = {error["message"] for error in run.errors()}
    assert len(words) == 1
    (message,) = words
    assert "the loss of step 3 is nan" in message or "gradient norm of step 3 is nan" in message
    assert "no number: rank 1 (" in message
    assert run.checkpoints() == ["step-000000002-attempt-00001"]
    checkpoint.verify(run.checkpoint_dir / run.checkpoints()[0])
    assert 3 not in run.losses()


def test_a_gradient_alone_that_is_no_number(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(poisoned(2, gradient_only=True))
    (message,) = {error["message"] for error in run.errors()}
    assert "the gradient norm of step 2 is nan" in message
    assert "No rank's own loss was" in message


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("strategy", STRATEGIES[:2], ids=ids)
def test_a_skipped_step_changes_no_weight_and_no_moment(
    tmp_path: Path, strategy: dict[str, Any], clip_norm: float
) -> None:
    run = Run(tmp_path)
    config = poisoned(2, optimizer__clip_norm=clip_norm, logging__every=1, checkpoint__keep=9)
    config["nonfinite"] = {"policy": "skip", "limit": 1}
    config["parallelism"] |= strategy
    assert run.finish(config) == "done"
    states = [run.digest(name, LEARNED) for name in run.checkpoints()]
    assert states[0] == states[1]
    assert states[1] != states[2] != states[3]
    lines = [line for line in run.metrics() if "losses" in line]
    assert [line["loss"] is None for line in lines] == [False, True, False, False]
    assert [line["grad_norm"] is None for line in lines] == [False, True, False, False]
    (event,) = run.events("skipped")
    assert (event["step"], event["total"]) == (2, 1)


def test_more_in_a_row_than_the_limit_end_the_training(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = poisoned(1, 3, 4, checkpoint__every_steps=2, logging__every=9)
    config["nonfinite"] = {"policy": "skip", "limit": 1}
    run.start(config)
    (message,) = {error["message"] for error in run.errors()}
    assert "of step 4 is nan, after 1 skipped in a row" in message
    assert [event["step"] for event in run.events("skipped")] == [1, 3]
    assert run.checkpoints() == ["step-000000002-attempt-00001"]


def test_a_row_goes_on_over_a_resume(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = poisoned(2, 3, checkpoint__every_steps=1)
    config["nonfinite"] = {"policy": "skip", "limit": 1}
    config["steps"] = 2
    run.finish(config)
    (run.run_dir / "DONE").unlink()
    run.start(config | {"steps": 4}, attempt=2)
    (message,) = {error["message"] for error in run.errors(2)}
    assert "of step 3 is nan, after 1 skipped in a row" in message


def test_under_fp16_steps_that_overflow_are_ordinary(tmp_path: Path) -> None:
    """They are left out to find the scale, and neither told nor counted as faults."""
    run = Run(tmp_path)
    config = poisoned(2, 3, parallelism__precision="fp16")
    assert run.finish(config) == "done"
    assert run.events("skipped") == []


def test_but_not_without_an_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = poisoned(*range(3, 99), parallelism__precision="fp16", checkpoint__every_steps=50)
    logging = {"every": 100, "tensorboard": False, "samples": False, "traffic": False}
    run.start(config | {"steps": 99, "logging": logging})
    (message,) = {error["message"] for error in run.errors()}
    assert f"of step {3 + FP16_LIMIT} is nan, after {FP16_LIMIT} skipped in a row" in message
    assert run.checkpoints() == []
