"""Parallelism is applied here and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.agreement import agree, facts_of_model
from trainer.config import TrainerConfig
from trainer.mesh import sizes_of
from trainer.model import build_whole, compile_blocks
from trainer.parallelized import Parallelized


def parallelize(config: TrainerConfig, vocab_size: int, device: torch.device) -> Parallelized:
    """The model of the configuration, with its starting values, spread over all ranks.

    A collective. Raises ConfigurationError for a strategy or a model that cannot be used.
    """
    sizes = sizes_of(config)
    # Each strategy imports parts of torch that the others don't need, which takes its time.
    if config.parallelism.uses_fsdp:
        from trainer.classic import classic
        from trainer.sharding import sharded
        from trainer.starting import starting_values

        start = starting_values(config, vocab_size, device)
        spread = sharded if config.parallelism.fsdp.version == 2 else classic
        return spread(start, config, device, sizes)
    from trainer.replicated import replicated, threaded

    model = build_whole(config, vocab_size)
    agree(facts_of_model(model))
    if config.compile:
        compile_blocks(model)
    if config.parallelism.strategy == "dp":
        return threaded(model, config, device, sizes)
    return replicated(model, config, device, sizes)


def split(batch: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [B, T] on `device`, of a batch of windows [B, T + 1]."""
    batch = batch.to(device, non_blocking=True)
    return batch[:, :-1], batch[:, 1:]
