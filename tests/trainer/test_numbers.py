"""The numbers do not depend on how the work is cut up: ranks, micro-batches, padding, strategy.

Each is held against one process that takes the whole batch at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from orchestrator.spec.parallelism import Parallelism
from ranks import run_ranks
from runs import LEARNED, TEXT, Run, configuration, with_trainer
from trainer.config import parse_config
from trainer.data import load_corpus
from trainer.loop import Trainer
from trainer.model import build_whole
from trainer.optim import learning_rate
from trainer.token_counts import mask

PAD = ord("~")
STRATEGIES: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "hybrid_shard", "shard_group": 2},
    {"strategy": "full_shard", "fsdp": {"version": 1}},
    {"strategy": "full_shard", "gradient_sync": "each"},
    {"strategy": "full_shard", "tensor": 2},
]


class Curves(NamedTuple):
    """By step: losses and gradient norms; and all validation losses."""

    losses: list[float]
    norms: list[float]
    validation: list[float]


def curves(run: Run, config: dict[str, Any]) -> Curves:
    assert run.finish(config) == "done"
    lines = [line for line in run.metrics() if "losses" in line]
    validation = [event["loss"] for event in run.events("validation")]
    return Curves(
        [line["loss"] for line in lines], [line["grad_norm"] for line in lines], validation
    )


def config_of(parallelism: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    config = configuration(**{"steps": 4, "logging__every": 1} | changes)
    for key, value in (parallelism or {}).items():
        if isinstance(value, dict):
            config["parallelism"][key] |= value
        else:
            config["parallelism"][key] = value
    return config


def near(expected: Curves) -> Any:
    return tuple(pytest.approx(part, rel=2e-6) for part in expected)


def ids(value: Any) -> str:
    return ",".join(f"{key}={part}" for key, part in value.items())


# Padding.


def write_padded(run: Run) -> None:
    """Text whose windows of 17 tokens have from no counted target to 16."""
    run.workdir.mkdir(parents=True)
    words = [f"{'x' * (n % 19)}{'~' * (n * 7 % 41)}" for n in range(1, 160)]
    (run.workdir / "padded.text").write_text("".join(words))


def padded(**changes: Any) -> dict[str, Any]:
    defaults = {"data__ignore_token": PAD, "data__paths": ["padded.text"]}
    return config_of(changes.pop("parallelism", None), **defaults | changes)


@pytest.fixture(scope="module")
def whole_padded(tmp_path_factory: pytest.TempPathFactory) -> Curves:
    """One process, whose loss is torch's mean over all targets that count, at once."""
    run = Run(tmp_path_factory.mktemp("padded"))
    write_padded(run)
    return curves(run, padded(num_ranks=1, batch__micro=12))


@pytest.mark.case("T08", "T13")
@pytest.mark.parametrize("parallelism", STRATEGIES, ids=ids)
def test_micro_batches_and_ranks_that_differ_in_counted_tokens(
    whole_padded: Curves, tmp_path: Path, parallelism: dict[str, Any]
) -> None:
    run = Run(tmp_path)
    write_padded(run)
    ranks = 4 // parallelism.get("tensor", 1)
    cut = padded(
        num_ranks=4, batch__micro=1, batch__accumulation=12 // ranks, parallelism=parallelism
    )
    assert curves(run, cut) == near(whole_padded)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_where_every_token_counts_the_bits_are_the_same(tmp_path: Path, accumulation: int) -> None:
    plain, counted = Run(tmp_path / "plain"), Run(tmp_path / "counted")
    curves(plain, config_of(batch__accumulation=accumulation))
    curves(counted, config_of(batch__accumulation=accumulation, data__ignore_token=0))
    assert counted.losses() == plain.losses()
    assert counted.digest(parts=LEARNED) == plain.digest(parts=LEARNED)


def test_the_padded_text_has_micro_batches_with_all_counts(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_padded(run)
    corpus = load_corpus(parse_config(padded(), "test"), run.workdir)
    windows = corpus.train[np.arange(len(corpus.train))]
    counts = {mask(window[1:], PAD)[1].item() for window in windows}
    assert {0, 16} < counts


@pytest.mark.case("T13")
def test_the_schedule_steps_once_per_update_also_after_a_resume(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = config_of(num_ranks=3, batch__accumulation=2, checkpoint__every_steps=2)
    curves(run, config)
    (run.run_dir / "DONE").unlink()
    (run.checkpoint_dir / run.checkpoints()[-1] / "manifest.json").unlink()
    assert run.finish(config, attempt=2) == "done"
    parsed = parse_config(config, "test")
    found = [(line["step"], line["lr"]) for line in run.metrics() if "lr" in line]
    assert found == [
        (step, learning_rate(step, 4, parsed.optimizer.lr, parsed.schedule))
        for step in (1, 2, 3, 4, 3, 4)
    ]


# Shares of unequal size.


@pytest.mark.case("T07", "T30")
@pytest.mark.parametrize("windows", [1, 4, 7])
@pytest.mark.parametrize("strategy", ["ddp", "full_shard"])
def test_validation_samples_that_do_not_divide(tmp_path: Path, strategy: str, windows: int) -> None:
    """Three ranks with micro-batches of 2: some have a batch fewer, and some none at all."""
    found = []
    for ranks in (1, 3):
        run = Run(tmp_path / str(ranks))
        run.write_text()
        (run.workdir / "held.text").write_text(TEXT[: 16 * windows + 1])
        config = config_of(
            {"strategy": strategy}, num_ranks=ranks, steps=2, data__validation_fraction=0.0,
            batch__micro=6 // ranks, data__validation_paths=["held.text"], evaluation__every=1,
        )  # fmt: skip
        found.append(curves(run, config))
    assert found[1] == near(found[0])
    assert len(found[1].validation) == 3


# Reductions.


def reduced(run: Run, reductions: str) -> bool:
    """Whether FSDP's gradient is the mean over ranks, in fp32, of those that bf16 computes."""
    config = config_of(
        {"strategy": "full_shard", "precision": "bf16", "reductions": reductions},
        model__tied=False,
    )
    return bool(with_trainer(run, config, equals_mean_in_fp32))


def equals_mean_in_fp32(trainer: Trainer) -> bool:
    alone = build_whole(trainer.config, trainer.corpus.vocab_size).bfloat16()
    pair = trainer._next_batch()
    for loss in (alone(*pair), trainer._loss(*pair)):
        torch.autograd.backward(loss)
    equal = []
    for mine, (_, spread) in zip(alone.parameters(), trainer.parallel.named, strict=True):
        assert mine.grad is not None
        assert isinstance(spread.grad, DTensor)
        mean = mine.grad.float()
        dist.all_reduce(mean)
        equal.append(torch.equal(mean / 2, spread.grad.full_tensor()))
    return all(equal)


@pytest.mark.case("T11")
def test_gradients_of_bf16_are_summed_in_fp32_unless_asked_otherwise(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    assert run_ranks(2, reduced, run, Parallelism().reductions) == [True, True]
    assert run_ranks(2, reduced, run, "bf16") == [False, False]
