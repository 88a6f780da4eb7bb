"""Faults that would train something else in silence end the run, with their ranks named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ranks import run_ranks
from runs import Run, _rank, _set_environ, configuration
from trainer.main import main

WHOLE = {"by": "size", "classes": [], "min_parameters": 10**6}  # the model is one unit


def messages(run: Run, kind: str) -> set[str]:
    errors = run.errors()
    assert {error["kind"] for error in errors} == {kind}
    return {error["message"] for error in errors}


@pytest.mark.parametrize("strategy", ["ddp", "full_shard"])
def test_modules_in_another_order(tmp_path: Path, strategy: str) -> None:
    """FSDP2 pairs collectives by order: both layers have the same shape, and no error comes."""
    run = Run(tmp_path)
    config = configuration(num_ranks=3, model__factory="models:two_heads")
    config["parallelism"]["strategy"] = strategy
    run.start(config)
    (message,) = messages(run, "configuration")
    host = os.uname().nodename
    assert f"rank 1 ({host}) and rank 0, 2 differ in the order of modules" in message
    assert "'second: Linear' and 'first: Linear'" in message
    assert run.checkpoints() == []


def start_with_own_config(run: Run) -> int:
    file = run.run_dir / f"trainer-{os.environ['RANK']}.json"
    return _rank(run, file, 1, None)


def test_another_configuration_on_one_rank(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.attempt_dir().mkdir(parents=True)
    run.write_text()
    for rank in range(3):
        config = configuration(num_ranks=3, optimizer__lr=0.01 if rank != 2 else 0.02)
        (run.run_dir / f"trainer-{rank}.json").write_text(json.dumps(config))
    assert run_ranks(3, start_with_own_config, run) == [1, 1, 1]
    (message,) = messages(run, "configuration")
    assert "rank 2 (" in message
    assert "differ in the configuration" in message
    assert "'optimizer.lr: 0.02' and 'optimizer.lr: 0.01'" in message


def start_with_own_folder(run: Run) -> int:
    """Rank 0 has another working folder with another text, as a node with an old copy has."""
    _set_environ(run, 1)
    if os.environ["RANK"] == "0":
        other = run.root / "other"
        other.mkdir()
        (other / "a.txt").write_text("z" * 5000)
        os.environ["ORCHESTRATE_WORKDIR"] = str(other)
    return main(["--config", str(run.run_dir / "trainer.json")])


def test_other_data_on_one_rank(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.attempt_dir().mkdir(parents=True)
    run.write_text()
    (run.run_dir / "trainer.json").write_text(json.dumps(configuration(num_ranks=3)))
    assert run_ranks(3, start_with_own_folder, run) == [1, 1, 1]
    (message,) = messages(run, "configuration")
    assert "rank 0 (" in message
    assert "differ in the data" in message


def check_every(steps: int, **parallelism: Any) -> dict[str, Any]:
    config = configuration(
        num_ranks=4, model__factory="models:flips", model__args={"step": 3, "rank": 2}, steps=6,
        checkpoint__every_steps=1,
    )  # fmt: skip
    config["parallelism"] |= {"check_replicas_every": steps} | parallelism
    return config


def test_a_weight_that_changed_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(check_every(2))
    (message,) = messages(run, "failure")
    assert "ReplicasDiffer: after step 4 rank 2 (" in message
    assert "held other bits of head.bias than rank 0, 1, 3" in message
    assert run.checkpoints()[-1] == "step-000000003-attempt-00001"  # checked before it is saved


def test_it_is_found_at_the_next_start_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = check_every(1)
    config["model"]["args"]["step"] = 9
    assert run.finish(config) == "done"


def test_full_shard_has_no_replicas(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(check_every(2, strategy="full_shard", wrap=WHOLE))
    (message,) = messages(run, "configuration")
    assert "parallelism.check_replicas_every: leave it out" in message
