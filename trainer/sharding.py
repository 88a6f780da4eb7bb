"""Parameters, gradients and optimizer state spread over ranks by torch's fully_shard (FSDP2)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate

from trainer.config import ParallelismConfig, TrainerConfig
from trainer.limits import group_timeout_s
from trainer.mesh import Sizes, build_mesh
from trainer.model import GPT, compile_blocks
from trainer.parallelized import Outline, Parallelized
from trainer.precision import DTYPES, cast_buffers
from trainer.starting import StartingValues
from trainer.tensor_parallel import split_blocks
from trainer.wrapping import units_of


class Sharded(Parallelized):
    """Under fully_shard, on a mesh of (replicate x) shard (x tensor)."""

    in_lockstep = True

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        """As Parallelized has it; without a sum, gradients stay whole and are added up."""
        root = cast(FSDPModule, self.model)
        if self.config.batch.accumulation > 1:
            each = self.config.parallelism.gradient_sync == "each"
            root.set_requires_gradient_sync(is_last or each)
            root.set_is_last_backward(is_last)
        return contextlib.nullcontext()

    def _copies(self) -> Sequence[int]:
        return [dist.get_world_size() // _num_parts(p) for p in self.trainable]

    def after_evaluation(self) -> None:
        """Drop the whole parameters that no backward pass came to drop."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _num_parts(parameter: nn.Parameter) -> int:
    """How many different parts of it the ranks hold."""
    number = 1
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        for size, placement in zip(mesh.shape, placements, strict=True):
            number *= 1 if isinstance(placement, Replicate) else size
    return number


def sharded(
    start: StartingValues, config: TrainerConfig, device: torch.device, sizes: Sizes
) -> Sharded:
    """The model, spread over all ranks and with its starting values; a collective."""
    parallelism = config.parallelism
    mesh = build_mesh(sizes, device, group_timeout_s(config))
    model = start.model
    outline = Outline.of(model, config)
    units = units_of(model, parallelism.wrap)
    if sizes.tensor > 1:
        split_blocks(cast(GPT, model), mesh["tensor"])
    if config.compile:
        compile_blocks(model)
    _shard(model, units, mesh, parallelism, device)
    home = torch.device("cpu") if parallelism.cpu_offload else device
    start.put_into(model, home, device)
    cast_buffers(model, parallelism.buffers)
    result = Sharded(config, device, sizes, outline, model)
    result.groups = mesh.get_all_groups()
    return result


def _shard(
    model: nn.Module,
    units: Sequence[nn.Module],
    mesh: DeviceMesh,
    parallelism: ParallelismConfig,
    device: torch.device,
) -> None:
    options: dict[str, Any] = {
        "mesh": _data_mesh(mesh),
        # None is torch's own way of full sharding: all units but the root, which the backward
        # pass needs first.
        "reshard_after_forward": _reshard(parallelism),
        "mp_policy": _mixed_precision(parallelism),
        "offload_policy": _offload(parallelism, device),
    }
    for unit in units:
        fully_shard(unit, **options)
    fully_shard(model, **options)
    _prefetch(cast("list[FSDPModule]", units), parallelism)


def _data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    names = tuple(name for name in mesh.mesh_dim_names or () if name != "tensor")
    return mesh if names == mesh.mesh_dim_names else mesh[names]


def _reshard(parallelism: ParallelismConfig) -> bool | int | None:
    given = parallelism.fsdp.reshard_after_forward
    if given is None and parallelism.strategy == "shard_grad_op":
        return False
    return given


def _mixed_precision(parallelism: ParallelismConfig) -> MixedPrecisionPolicy:
    narrow = parallelism.precision != "fp32"
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[parallelism.precision] if narrow else None,
        reduce_dtype=DTYPES[parallelism.reductions],
    )


def _offload(parallelism: ParallelismConfig, device: torch.device) -> OffloadPolicy:
    if parallelism.cpu_offload:
        return CPUOffloadPolicy(pin_memory=device.type != "cpu")
    return OffloadPolicy()


def _prefetch(units: Sequence[FSDPModule], parallelism: ParallelismConfig) -> None:
    """Have each unit gather the next ones, in the order in which the pass comes to them."""
    forward, backward = parallelism.fsdp.prefetch_forward, parallelism.fsdp.prefetch_backward
    for index, unit in enumerate(units):
        if forward:
            unit.set_modules_to_forward_prefetch(list(units[index + 1 : index + 1 + forward]))
        if backward:
            before = units[max(0, index - backward) : index]
            unit.set_modules_to_backward_prefetch(list(reversed(before)))
