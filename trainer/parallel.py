"""Parallelism is applied here and nowhere else.

FSDP takes its place in `parallelize` next to DDP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import TrainerConfig
from trainer.contract import ConfigurationError

# DDP puts its buckets into the order in which gradients arrived after the first backward pass, and
# uses the new buckets from the second on. A resumed run would sum its first step in another order
# than the run that went straight through. Two passes before the first step make both alike.
NUM_SETTLING_PASSES = 2
TORCH_BUCKET_CAP_MB = 25  # default of DistributedDataParallel's bucket_cap_mb


def parallelize(
    model: nn.Module, config: TrainerConfig, device: torch.device
) -> DistributedDataParallel:
    """The model, on `device` and with rank 0's weights, wrapped for the strategy."""
    if config.strategy != "ddp":
        raise ConfigurationError(
            f"parallelism.strategy: {config.strategy} is not supported yet (allowed: ddp)"
        )
    model = model.to(device)
    if config.compile:
        model.compile()
    ddp = config.ddp
    sync_buffers = ddp.broadcast_buffers
    if sync_buffers is None:
        sync_buffers = next(model.buffers(), None) is not None
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        # None is 25 MiB too, with a smaller first bucket, so that the first sum starts early.
        bucket_cap_mb=None if ddp.bucket_cap_mb == TORCH_BUCKET_CAP_MB else ddp.bucket_cap_mb,
        find_unused_parameters=ddp.find_unused_parameters,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        static_graph=ddp.static_graph,
        forward_sync_buffers=sync_buffers,  # torch 2.13's name for broadcast_buffers
    )


def settle(model: DistributedDataParallel, backward: Callable[[], None]) -> None:
    """Run the throw-away passes and undo what they did to weights, buffers and gradients.

    `backward` runs one synchronised forward and backward pass on a real batch. Random states are
    the caller's to set afterwards.
    """
    values = [*model.module.parameters(), *model.module.buffers()]
    before = [value.detach().clone() for value in values]
    for _ in range(NUM_SETTLING_PASSES):
        backward()
        model.zero_grad()
    with torch.no_grad():
        for value, old in zip(values, before, strict=True):
            value.copy_(old)


def gradient_sync(
    model: DistributedDataParallel, is_last_micro_batch: bool
) -> AbstractContextManager[None]:
    """Gradients are summed over ranks with the last micro-batch of a step only."""
    return contextlib.nullcontext() if is_last_micro_batch else model.no_sync()


def autocast(config: TrainerConfig, device: torch.device) -> AbstractContextManager[object]:
    """bf16 mixed precision, or nothing."""
    if config.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def split(batch: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [B, T] on `device`, of a batch of windows [B, T + 1]."""
    batch = batch.to(device, non_blocking=True)
    return batch[:, :-1], batch[:, 1:]
