"""Options of the strategies: those that must not change the training, and those that do a little.

All of them on 2 ranks, one trainer after the other, which saves most of the time of a start.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import trainer.sharding
import trainer.starting  # noqa: F401  # the memory of both is not that of a model
from ranks import run_ranks
from runs import Run, _set_environ, configuration, in_group
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.model import GPT
from trainer.parallel import parallelize
from trainer.replicated import Replicated

STEPS = 5
FULL = {"strategy": "full_shard"}
CLASSIC = {"strategy": "full_shard", "fsdp__version": 1}
BY_SIZE = {"wrap__by": "size", "wrap__min_parameters": 100}
WORDS = {"model__factory": "models:words", "model__args": {"norm": True}}
FROZEN = {"model__factory": "models:frozen"}
AWKWARD = {"model__factory": "models:awkward"}

SAME: dict[str, dict[str, Any]] = {
    "compared with": {},
    "recomputed": {"activation_checkpointing": "full"},
    "selectively": {"activation_checkpointing": "selective"},
    "sharded, recomputed": {**FULL, "activation_checkpointing": "full"},
    "sharded, selectively": {**FULL, "activation_checkpointing": "selective"},
    "every second": {**FULL, "activation_checkpointing": "full",
                     "activation_checkpointing_every": 2},
    "classic, recomputed": {**CLASSIC, "activation_checkpointing": "full"},
    "prefetch": {**FULL, "fsdp__prefetch_forward": 1, "fsdp__prefetch_backward": 1},
    "reshard": {**FULL, "fsdp__reshard_after_forward": True},
    "reshard over 2": {**FULL, "fsdp__reshard_after_forward": 2},
    "whole at first": {**FULL, "fsdp__deferred_init": False},
    "tensor, whole at first": {**FULL, "tensor": 2, "fsdp__deferred_init": False,
                               "batch__micro": 4},
    "offload": {**FULL, "cpu_offload": True},
    "buffers": {**FULL, "buffers": "bf16"},
    "by class": {**FULL, "wrap__by": "class", "wrap__classes": ["Block"]},
    "by size": {**FULL, "wrap__by": "size", "wrap__min_parameters": 6000},
    "classic by size": {**CLASSIC, "wrap__by": "size", "wrap__min_parameters": 6000},
    "each alone": {**FULL, "wrap__by": "size", "wrap__min_parameters": 1},
    "each alone, classic": {**CLASSIC, "wrap__by": "size", "wrap__min_parameters": 1},
}  # fmt: skip
OF_THE_USER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "buffers": (WORDS, {**FULL, **BY_SIZE}),
    "buffers, classic": (WORDS, {**CLASSIC, **BY_SIZE}),
    "frozen": (FROZEN, {**FULL, **BY_SIZE}),
    "frozen, classic": (FROZEN, {**CLASSIC, **BY_SIZE}),
    "cannot be hollow": (AWKWARD, {**FULL, **BY_SIZE}),
    "a tensor in a pocket": ({"model__factory": "models:pocketed"}, {**FULL, **BY_SIZE}),
    "by list": ({"model__factory": "models:stack"}, FULL),
}
NEAR: dict[str, tuple[dict[str, Any], float]] = {
    "ddp in bf16": ({"precision": "bf16"}, 0.01),
    "sharded in bf16": ({**FULL, "precision": "bf16"}, 0.01),
    "classic in bf16": ({**CLASSIC, "precision": "bf16"}, 0.01),
    "ddp in fp16": ({"precision": "fp16"}, 0.01),
    "sharded in fp16": ({**FULL, "precision": "fp16"}, 0.01),
    "classic in fp16": ({**CLASSIC, "precision": "fp16"}, 0.01),
    "sums in bf16": ({**FULL, "reductions": "bf16"}, 0.01),
    "fp16 hook": ({"ddp__hook": "fp16"}, 0.01),
    "powersgd": ({"ddp__hook": "powersgd", "ddp__powersgd_rank": 2}, 0.1),
}


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration: keys are those of `parallelism` unless they name another section."""
    sections = ("model__", "batch__")
    named = {
        key if key.startswith(sections) else f"parallelism__{key}": value
        for key, value in changes.items()
    }
    return configuration(steps=20, logging__every=10**6, **named)


def losses_of(trainer: Trainer) -> list[float]:
    for _ in range(STEPS):
        trainer.advance()
    losses = torch.stack(trainer._reporter._losses)
    dist.all_reduce(losses)
    return cast("list[float]", (losses / dist.get_world_size()).tolist())


def train_each(run: Run, configs: list[dict[str, Any]]) -> list[list[float]]:
    return in_group(run, configs, losses_of)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.write_text()
    return run


@pytest.mark.case("T09")
# Of a Linear that is sharded alone: nothing here changes what it returns in place.
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
def test_what_must_not_change_the_training(run: Run) -> None:
    configs = [given(changes) for changes in SAME.values()]
    found = dict(zip(SAME, run_ranks(2, train_each, run, configs)[0], strict=True))
    expected = found["compared with"]
    different = {name: losses for name, losses in found.items()
                 if losses != pytest.approx(expected, rel=1e-6)}  # fmt: skip
    assert not different, expected


@pytest.mark.case("T28")
def test_a_users_model_trains_as_under_ddp(run: Run) -> None:
    configs = []
    for model, parallelism in OF_THE_USER.values():
        configs += [given(model), given(model | parallelism)]
    found = run_ranks(2, train_each, run, configs)[0]
    for name, plain, sharded in zip(OF_THE_USER, found[::2], found[1::2], strict=True):
        assert sharded == pytest.approx(plain, rel=1e-6), name


def first_loss(trainer: Trainer) -> tuple[str, float]:
    with torch.no_grad():
        loss = trainer._loss(*trainer._next_batch())
    return str(loss.dtype), loss.item()


def first_losses(run: Run, configs: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return in_group(run, configs, first_loss)


def test_a_users_loss_is_computed_in_fp32_everywhere(run: Run) -> None:
    strategies: list[dict[str, Any]] = [{}, {**FULL, **BY_SIZE}, {**CLASSIC, **BY_SIZE}]
    model = {"model__factory": "models:words", "precision": "bf16"}
    found = run_ranks(2, first_losses, run, [given(model | each) for each in strategies])[0]
    assert [dtype for dtype, _ in found] == ["torch.float32"] * 3
    assert [loss for _, loss in found] == pytest.approx([found[0][1]] * 3, rel=1e-3)


def test_what_changes_the_training_a_little(run: Run) -> None:
    configs = [given({}), *(given(changes) for changes, _ in NEAR.values())]
    expected, *found = run_ranks(2, train_each, run, configs)[0]
    for (name, (_, tolerance)), losses in zip(NEAR.items(), found, strict=True):
        assert losses == pytest.approx(expected, rel=tolerance), name
        assert losses != pytest.approx(expected, rel=1e-7), name


def test_dp_in_one_process(run: Run) -> None:
    configs = [given({"batch__micro": 4}), given({"batch__micro": 4, "strategy": "dp"})]
    configs = [config | {"num_ranks": 1} for config in configs]
    plain, threaded = run_ranks(1, train_each, run, configs)[0]
    assert threaded == pytest.approx(plain, rel=1e-6)


def overflow(trainer: Trainer) -> tuple[bool, float, float]:
    """Whether a step that overflows leaves the weights alone, and the scale before and after."""
    scaler = trainer.parallel.scaler
    assert scaler is not None
    trainer.advance()
    scaler.scale.fill_(2.0**100)
    before, scale = trainer.parallel.weights(keep=True), scaler.scale.item()
    before = {name: value.clone() for name, value in before.items()}
    trainer.advance()
    after = trainer.parallel.weights(keep=True)
    same = all(torch.equal(before[name], after[name]) for name in before)
    return same, scale, scaler.scale.item()


def overflow_each(run: Run, configs: list[dict[str, Any]]) -> list[tuple[bool, float, float]]:
    return in_group(run, configs, overflow)


def test_a_step_that_overflows_in_fp16_is_skipped_on_all_ranks(run: Run) -> None:
    strategies: list[dict[str, Any]] = [{}, FULL, CLASSIC]
    configs = [given({"precision": "fp16"} | strategy) for strategy in strategies]
    for rank in run_ranks(2, overflow_each, run, configs):
        assert rank == [(True, 2.0**100, 2.0**99)] * 3


def test_fp16_resumes_with_its_scale(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(
        parallelism__strategy="full_shard", parallelism__precision="fp16", checkpoint__every_steps=3
    )
    run.finish(config)
    digest = run.digest()
    (run.run_dir / "DONE").unlink()
    (run.checkpoint_dir / run.checkpoints()[-1] / "manifest.json").unlink()
    run.finish(config, attempt=2)
    assert run.digest() == digest


def look(trainer: Trainer) -> dict[str, Any]:
    trainer.advance()
    trainer._evaluate()
    model = cast(GPT, trainer.parallel.bare)
    parts = [cast(DTensor, p).to_local().numel() for p in trainer.parallel.trainable]
    return {
        "tied": model.head.weight is model.token.weight,
        "numbers": sum(parts),
        "of": trainer.parallel.outline.num_parameters,
        "moments": sum(
            state["exp_avg"].to_local().numel() for state in trainer.optimizer.state.values()
        ),
    }


def look_each(run: Run, configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return in_group(run, configs, look)


@pytest.mark.case("T27")
def test_each_rank_holds_its_part_and_ties_hold(run: Run) -> None:
    strategies = [FULL, {"strategy": "shard_grad_op"}]
    for rank in run_ranks(2, look_each, run, [given(strategy) for strategy in strategies]):
        for seen in rank:
            assert seen["tied"]
            assert seen["numbers"] == seen["moments"] == seen["of"] / 2


def powersgd_starts(trainer: Trainer) -> tuple[int, int]:
    """Steps that PowerSGD knows of, and from which on it works; after training to the end."""
    power = cast(Replicated, trainer.parallel)._power
    assert power is not None
    seen = power.iter, power.start_powerSGD_iter
    trainer.run()
    return seen


def powersgd_each(run: Run, configs: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return in_group(run, configs, powersgd_starts)


def test_powersgd_goes_on_where_it_was(run: Run) -> None:
    config = given({"ddp__hook": "powersgd"})
    configs = [config | {"steps": steps} for steps in (4, 50)]
    assert run_ranks(2, powersgd_each, run, configs)[0] == [(0, 2), (4, 5)]


LARGE = {"layers": 24, "heads": 8, "width": 512, "context": 16}  # 303 MB in fp32


def peak_growth(run: Run) -> tuple[int, int]:
    """Bytes that building a large model adds to this process at most, and those of the model."""
    large = {f"model__{name}": size for name, size in LARGE.items()}
    changes = {"num_ranks": 4, "parallelism__strategy": "full_shard", **large}
    config = parse_config(configuration(**changes), "test")
    _set_environ(run, attempt=1)
    with process_group(config, Contract.from_environ()):
        before = peak_bytes()
        parallel = parallelize(config, 256, torch.device("cpu"))
        grown, size = peak_bytes() - before, 4 * parallel.outline.num_parameters
        del parallel
    return grown, size


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_model_larger_than_a_ranks_share_of_memory_starts(run: Run) -> None:
    shares = [grown / size for grown, size in run_ranks(4, peak_growth, run)]
    assert max(shares) < 0.4, shares  # a quarter, and one parameter at a time


def stop_in_evaluation(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("evaluation", 3) and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("strategy", ["ddp", "full_shard"])
def test_one_rank_that_stops_in_evaluation_stops_all(tmp_path: Path, strategy: str) -> None:
    run = Run(tmp_path)
    config = configuration(parallelism__strategy=strategy, evaluation__every=3)
    assert run.finish(config, listener=stop_in_evaluation) == "drained"
    assert run.outcome() == {"version": 1, "outcome": "drained", "step": 3}
    assert run.finish(config, attempt=2) == "done"
    assert [event["step"] for event in run.events("validation")] == [0, 3, 6]


def gradients(trainer: Trainer, is_last: bool) -> list[Tensor]:
    with trainer.parallel.gradient_sync(is_last):
        trainer.parallel.backward(trainer._loss(*trainer._next_batch()))
    return [p.grad for p in trainer.parallel.trainable if p.grad is not None]


def summed(trainer: Trainer) -> tuple[bool, bool]:
    """Whether there are summed gradients after a micro-batch, and after the last one."""
    first = gradients(trainer, is_last=False)
    return bool(first), bool(gradients(trainer, is_last=True))


def summed_each(run: Run, configs: list[dict[str, Any]]) -> list[tuple[bool, bool]]:
    return in_group(run, configs, summed)


@pytest.mark.case("T02")
def test_when_sharded_gradients_are_summed(run: Run) -> None:
    sync: list[dict[str, Any]] = [{"gradient_sync": "last"}, {"gradient_sync": "each"}]
    configs = [given({**FULL, **each, "batch__accumulation": 2}) for each in sync]
    found = run_ranks(2, summed_each, run, configs)[0]
    assert found == [(False, True), (True, True)]
