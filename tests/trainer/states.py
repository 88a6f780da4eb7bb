"""Small models under every strategy, and their state gathered, to compare bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runs import configuration
from trainer.loop import Trainer

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
Words = dict[str, str]

NUM_PARAMETERS = 28  # each with two moments and a number of steps; token and head are one
NUM_NUMBERS = 256 * 30 + 16 * 30 + 2 * (12 * 30**2 + 13 * 30) + 2 * 30


def job(name: str, num_ranks: int = 4, **changes: Any) -> dict[str, Any]:
    """A strategy with a model whose rows come out uneven: 30 on 4 ranks."""
    given = {f"parallelism__{key}": value for key, value in STRATEGIES[name].items()}
    return configuration(**{"num_ranks": num_ranks, "model__width": 30, **given, **changes})


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


def digest(tensors: dict[str, torch.Tensor]) -> Words:
    """What tells apart the bits of each tensor."""
    return {name: f"{list(value.shape)} {_hash(value)}" for name, value in tensors.items()}


def _hash(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:8]


def in_turn(*uses: Callable[[Trainer], Any]) -> Callable[[Trainer], Any]:
    """The first trainer goes to the first of them, and so on."""
    following = iter(uses)

    def use(trainer: Trainer) -> Any:
        return next(following)(trainer)

    return use


def group() -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
