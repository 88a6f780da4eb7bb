"""Collectives wait long until the first step is over, then as long as what all are at may take."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import Ended, run_ranks
from runs import Run, configuration
from trainer import limits, network_proof, watchdog
from trainer.config import parse_config
from trainer.connections import connections
from trainer.limits import Limits, set_timeout
from trainer.phase import Phase


def at(places: set[tuple[str, int, int]], hold_s: float, _run: Run, name: str, step: int) -> None:
    """A listener: ranks sleep at these places (phase, steps done, rank)."""
    if (name, step, int(os.environ["RANK"])) in places:
        time.sleep(hold_s)


def ended(run: Run, config: dict[str, Any], listener: Any, timeout_s: float) -> list[Ended]:
    run.claim(1)
    ranks = run.fork(config, 1, listener)
    ranks.begin()
    return ranks.collect(timeout_s)


@pytest.mark.parametrize(
    ("hold_s", "step_s"), [(6.0, 2.0), pytest.param(60.0, 20.0, marks=pytest.mark.faults)]
)
@pytest.mark.timeout(400)
@pytest.mark.case("L31")
def test_loading_and_saving_may_take_longer_than_a_step(
    hold_s: float, step_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MARGIN_S", 1.0)  # so that a group's own timeout is short, too
    run = Run(tmp_path)
    config = configuration(
        step_timeout_s=step_s, load_timeout_s=300, first_step_timeout_s=300,
        checkpoint__timeout_s=300, checkpoint__every_steps=2, steps=4,
    )  # fmt: skip
    listener = partial(at, {("load", 0, 1), ("publish", 2, 0), ("prune", 2, 0)}, hold_s)
    assert [end.value for end in ended(run, config, listener, 350)] == [0, 0], run.errors()
    assert len(run.checkpoints()) == 2


def test_a_checkpoint_may_take_longer_than_the_evaluation_after_which_it_is_waited_for(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    config = configuration(
        evaluation_timeout_s=3, checkpoint__asynchronous=True, checkpoint__every_steps=2, steps=4
    )
    listener = partial(at, {("publish", 2, 0)}, 7.0)
    assert [end.value for end in ended(run, config, listener, 120)] == [0, 0], run.errors()
    assert len(run.checkpoints()) == 2


@pytest.mark.parametrize("step", [0, 2])
def test_an_evaluation_waits_for_a_rank_that_makes_progress(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MARGIN_S", 1.0)
    run = Run(tmp_path)
    config = configuration(
        step_timeout_s=3, first_step_timeout_s=3, evaluation__batches=4, steps=2,
        model__factory="hanging:build",
        model__args={"how": "slow evaluation", "step": step, "rank": 1},
    )  # fmt: skip
    assert [end.value for end in ended(run, config, None, 120)] == [0, 0], run.errors()
    assert [event["step"] for event in run.events("validation")] == [0, 2]


def late_connections(*args: Any, **named: Any) -> Any:
    if os.environ["RANK"] == "1":
        time.sleep(6.0)  # a checkpoint here may take 3 s and its margin
    return connections(*args, **named)


def test_the_first_step_and_loading_may_take_longer_than_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MARGIN_S", 1.0)
    monkeypatch.setattr(network_proof, "connections", late_connections)
    run = Run(tmp_path)
    config = configuration(checkpoint__timeout_s=3, steps=2)
    listener = partial(at, {("restore", 0, 1)}, 6.0)
    assert [end.value for end in ended(run, config, listener, 120)] == [0, 0], run.errors()
    assert run.events("network")[0]["agrees"]  # the look itself was made


@pytest.mark.parametrize(("strategy", "group"), [("ddp", None), ("hybrid_shard", 2)])
def test_without_the_watchdog_a_step_ends_by_the_groups_own_timeout(
    strategy: str, group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MARGIN_S", 1.0)
    monkeypatch.setattr(watchdog, "POLL_S", 600.0)
    run = Run(tmp_path)
    config = configuration(
        num_ranks=4, step_timeout_s=2, load_timeout_s=300, parallelism__strategy=strategy,
        parallelism__shard_group=group,
    )  # fmt: skip
    listener = partial(at, {("load", 0, 1), ("step", 3, 1)}, 8.0)
    assert {end.value for end in ended(run, config, listener, 120)} == {1}
    said = [error["message"] for error in run.errors()]
    assert any("Timed out waiting 3000ms" in text for text in said)
    assert (
        run.events("start")[0]["world_size"] == 4
    )  # the same wait while loading was none too long


def test_the_groups_wait_at_each_stage() -> None:
    config = configuration(
        rendezvous_timeout_s=100, load_timeout_s=2000, first_step_timeout_s=1000, step_timeout_s=20,
        checkpoint__timeout_s=600,
    )  # fmt: skip
    stages = Limits(parse_config(config, "test"))
    assert stages.longest_s == 2000 + limits.MARGIN_S
    wait_s = {name: stages.of(Phase(name, 9), 5).wait_s for name in ("step", "evaluation", "save")}
    assert wait_s == {
        "step": 20 + limits.MARGIN_S,
        "evaluation": 20 + limits.MARGIN_S,
        "save": 600 + limits.SAVE_GRACE_S + limits.MARGIN_S,
    }


def test_torch_lets_a_group_be_given_another_timeout() -> None:
    assert run_ranks(1, lonely) == ["set"]


def lonely() -> str:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    assert dist.group.WORLD is not None
    set_timeout(dist.group.WORLD, 0.5)
    options = dist.group.WORLD._get_backend(torch.device("cpu")).options
    dist.destroy_process_group()
    assert options._timeout == timedelta(seconds=0.5)
    return "set"
