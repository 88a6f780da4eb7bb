"""The state in parts: what any layout writes, any other reads, with the same bits.

Whole states are gathered by full_state.py and flat_parts.py, which know nothing of these files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks
from runs import Run, configuration, in_group
from trainer.loop import Trainer
from trainer.sharded_state import load_shards, staged
from trainer.shards import Shards, write_shards

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "full_shard": {"strategy": "full_shard"},
    "hybrid_shard": {"strategy": "hybrid_shard", "shard_group": 2},
    "tensor": {"strategy": "full_shard", "tensor": 2},
    "hybrid tensor": {"strategy": "hybrid_shard", "shard_group": 1, "tensor": 2},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "no_shard": {"strategy": "no_shard"},
    "offload": {"strategy": "full_shard", "cpu_offload": True},
    "1 full_shard": {"strategy": "full_shard", "fsdp__version": 1},
    "1 shard_grad_op": {"strategy": "shard_grad_op", "fsdp__version": 1},
    "1 hybrid_shard": {"strategy": "hybrid_shard", "shard_group": 2, "fsdp__version": 1},
    "1 no_shard": {"strategy": "no_shard", "fsdp__version": 1},
}  # fmt: skip


NUM_PARAMETERS = 28  # each with two moments and a number of steps; token and head are one


def job(name: str, num_ranks: int = 4, **changes: Any) -> dict[str, Any]:
    """A strategy with a model whose rows come out uneven: 30 on 4 ranks."""
    given = {f"parallelism__{key}": value for key, value in STRATEGIES[name].items()}
    return configuration(**{"num_ranks": num_ranks, "model__width": 30, **given, **changes})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.write_text()
    return made


def whole(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All tensors of the state by their names in the files; empty but on rank 0. A collective."""
    keep = dist.get_rank() == 0
    weights = trainer.parallel.weights(keep)
    states = trainer.parallel.moments(trainer.optimizer, keep).get("state", {})
    first = {id(value): name for name, value in reversed(weights.items())}
    found = {f"model.{first[id(value)]}": value for value in weights.values()}
    for name, state in states.items():
        found |= {f"optimizer.{name}.{key}": value for key, value in state.items()}
    return found


def digest(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """What tells apart the bits of each tensor."""
    data = {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}
    return {
        name: f"{list(value.shape)} {hashlib.sha256(data[name]).hexdigest()[:8]}"
        for name, value in tensors.items()
    }


Told = tuple[dict[str, str], dict[str, str], dict[str, Any]]


def step(trainer: Trainer, source: Path | None, target: Path, group: Any) -> Told:
    """Load, train a step, write; returns the state after loading, at writing, and the files."""
    if source is not None:
        load_shards(source, trainer.parallel, trainer.optimizer)
    loaded = digest(whole(trainer))
    trainer.advance()
    written = digest(whole(trainer))
    parts = staged(trainer.parallel, trainer.optimizer)
    return loaded, written, write_shards(target, parts, group)


def walk(run: Run, configs: Sequence[dict[str, Any]], first: int) -> list[Told]:
    """Each configuration goes on from the folder of the one before; folder `first` is there."""
    folders = iter(range(first, first + len(configs)))

    def use(trainer: Trainer) -> Told:
        number = next(folders)
        group = dist.new_group(backend="gloo")
        source = run.root / str(number) if number else None
        target = run.root / str(number + 1)
        target.mkdir(exist_ok=True)
        return step(trainer, source, target, group)

    return in_group(run, configs, use)


def check(run: Run, told: Sequence[list[Told]], before: dict[str, str] | None, first: int) -> None:
    """That each load gave what was written before it, and the files hold what was written."""
    for number, (loaded, written, _) in enumerate(told[0], first):
        assert len(written) == 4 * NUM_PARAMETERS
        assert before is None or loaded == before
        shards = Shards(run.root / str(number + 1))
        assert digest({name: shards.whole(name) for name in shards.shapes}) == written
        before = written


def test_any_strategy_goes_on_from_any_other(run: Run) -> None:
    configs = [job(name) for name in STRATEGIES]
    told = run_ranks(4, walk, run, configs, 0)
    check(run, told, None, 0)
    for number in range(len(configs)):
        names = [sorted(rank[number][2]) for rank in told]
        assert names[0] == [".metadata", "__0_0.distcp"]
        assert names[1:] == [[f"__{rank}_0.distcp"] for rank in (1, 2, 3)]
