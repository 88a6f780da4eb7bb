"""A whole copy of the model on each rank (DDP), or on each GPU of one process (DataParallel)."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer.config import DdpConfig, TrainerConfig
from trainer.contract import ConfigurationError
from trainer.mesh import Sizes
from trainer.parallelized import Outline, Parallelized
from trainer.precision import autocast

# DDP puts its buckets into the order in which gradients arrived after the first backward pass, and
# uses the new buckets from the second on. A resumed run would sum its first step in another order
# than the run that went straight through. Two passes before the first step make both alike.
NUM_SETTLING_PASSES = 2
ONE_BUCKET_MB = 2.0**30
TORCH_BUCKET_CAP_MB = 25  # default of DistributedDataParallel's bucket_cap_mb

# Steps with plain sums before PowerSGD begins: torch's default of start_powerSGD_iter, but no more
# than this share of the run; torch allows none below 2.
POWERSGD_START, POWERSGD_START_SHARE = 1000, 0.1


class Replicated(Parallelized):
    """Under DistributedDataParallel."""

    model: DistributedDataParallel
    _power: powerSGD_hook.PowerSGDState | None = None

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        """Gradients are summed over ranks with the last micro-batch of a step, or with each."""
        if is_last or self.config.parallelism.gradient_sync == "each":
            return contextlib.nullcontext()
        return self.model.no_sync()

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.config.parallelism.precision, self.device)

    def settle(self, backward: Callable[[], None]) -> None:
        """Run the throw-away passes and undo what they did to weights, buffers and gradients."""
        values = [*self.module.parameters(), *self.module.buffers()]
        before = [value.detach().clone() for value in values]
        for _ in range(NUM_SETTLING_PASSES):
            backward()
            self.model.zero_grad()
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.copy_(old)
        self.resumed(0)

    def add_hook(self, ddp: DdpConfig, steps: int) -> None:
        """Make gradients smaller on the wire, as `hook` says."""
        if ddp.hook == "powersgd":
            start = max(2, min(POWERSGD_START, int(steps * POWERSGD_START_SHARE)))
            self._power = powerSGD_hook.PowerSGDState(None, ddp.powersgd_rank, start)
            self.model.register_comm_hook(self._power, powerSGD_hook.powerSGD_hook)
        elif ddp.hook == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif ddp.hook == "bf16":
            self.model.register_comm_hook(None, default_hooks.bf16_compress_hook)

    def resumed(self, step: int) -> None:
        """PowerSGD begins after its first steps, not after those since the resume.

        What it has not sent yet stays on its rank, is in no checkpoint, and is lost here.
        """
        if self._power is not None:
            self._power.iter = step
            self._power.error_dict.clear()
            self._power.p_memory_dict.clear()
            self._power.q_memory_dict.clear()


def replicated(
    model: nn.Module, config: TrainerConfig, device: torch.device, sizes: Sizes
) -> Replicated:
    """A model that was built on the CPU, under DDP on `device` and with rank 0's weights."""
    outline = Outline.of(model, config)
    model = model.to(device)
    ddp = config.parallelism.ddp
    sync_buffers = ddp.broadcast_buffers
    if sync_buffers is None:
        sync_buffers = next(model.buffers(), None) is not None
    wrapped = DistributedDataParallel(
        model,
        device_ids=None if device.type == "cpu" else [device.index],
        bucket_cap_mb=_bucket_cap_mb(ddp, config.backend),
        find_unused_parameters=ddp.find_unused_parameters,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        static_graph=ddp.static_graph,
        forward_sync_buffers=sync_buffers,  # torch 2.13's name for broadcast_buffers
    )
    result = Replicated(config, device, sizes, outline, wrapped, module=model)
    result.add_hook(ddp, config.steps)
    return result


def _bucket_cap_mb(ddp: DdpConfig, backend: str) -> float | None:
    if ddp.hook == "powersgd" and backend == "gloo":
        # torch's hook waits inside gloo's two threads: those of two buckets wait for ever.
        return ONE_BUCKET_MB
    # None is 25 MiB too, with a smaller first bucket, so that the first sum starts early.
    return None if ddp.bucket_cap_mb == TORCH_BUCKET_CAP_MB else ddp.bucket_cap_mb


class _MeanOfParts(DataParallel[nn.Module]):
    """DataParallel of a model that returns a scalar, of which there is one for each GPU."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        with warnings.catch_warnings():
            # It warns that it puts scalars into a vector, which is what is wanted here.
            warnings.filterwarnings("ignore", message="Was asked to gather along dimension 0")
            losses: Tensor = super().forward(*inputs, **named)
        return losses.mean()


class Threaded(Parallelized):
    """One process that feeds all GPUs it sees."""

    def autocast(self) -> AbstractContextManager[object]:
        return autocast(self.config.parallelism.precision, self.device)


def threaded(
    model: nn.Module, config: TrainerConfig, device: torch.device, sizes: Sizes
) -> Threaded:
    """The model under DataParallel. Raises ConfigurationError for a batch of unequal parts."""
    num_gpus = max(1, torch.cuda.device_count() if device.type == "cuda" else 1)
    if config.batch.micro % num_gpus:
        raise ConfigurationError(
            f"train.batch.micro: is {config.batch.micro} (allowed with strategy dp: a multiple of"
            f" the {num_gpus} GPUs, so that each has an equal part)"
        )
    print(
        "trainer: strategy dp is for prototypes: one process feeds all GPUs and copies the model"
        " to them at each step; strategy ddp is faster with one GPU too",
        file=sys.stderr,
    )
    outline = Outline.of(model, config)
    model = model.to(device)
    return Threaded(config, device, sizes, outline, _MeanOfParts(model), module=model)
