"""The same by the class FullyShardedDataParallel (FSDP1), for those who compare or depend on it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from trainer.config import ParallelismConfig, TrainerConfig
from trainer.flat_parts import FlatParts
from trainer.full_state import STEP, Buffers
from trainer.limits import group_timeout_s
from trainer.mesh import Sizes, build_mesh
from trainer.model import compile_blocks
from trainer.parallelized import Outline, Parallelized, clean
from trainer.precision import DTYPES
from trainer.starting import StartingValues
from trainer.wrapping import units_of


class Classic(Parallelized):
    """Under FullyShardedDataParallel."""

    in_lockstep = True
    model: FullyShardedDataParallel
    names: dict[str, str]  # each entry of the state, and the name that its tensor has first

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        if is_last or self.config.parallelism.gradient_sync == "each":
            return contextlib.nullcontext()
        return self.model.no_sync()

    def _copies(self) -> Sequence[int]:
        return [self.sizes.replicate] * len(self.trainable)

    def entries(self) -> dict[str, Any]:
        """By hand: the class would first make the whole model, and on the CPU crashes."""
        held: dict[str, Any] = dict(self.named)
        held |= {clean(name): buffer for name, buffer in self.module.named_buffers()}
        return {name: held[first] for name, first in self.names.items()}

    def moments(
        self, optimizer: torch.optim.Optimizer, keep: bool, into: Buffers | None = None
    ) -> dict[str, Any]:
        _fill_gaps(self.trainable, optimizer, self.device)
        return super().moments(optimizer, keep, into)


def _fill_gaps(
    parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    """Give an empty state to the parameters of which this rank has nothing; a collective.

    The optimizer never steps them, and they have no state here where other ranks have one.
    """
    steps = torch.full((len(parameters),), -1.0, device=device)
    for index, parameter in enumerate(parameters):
        if parameter.numel() and parameter in optimizer.state:
            steps[index] = optimizer.state[parameter][STEP]
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    for parameter, step in zip(parameters, steps.clone(), strict=True):
        if not parameter.numel() and step >= 0:
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {STEP: step, **moments}


def classic(
    start: StartingValues, config: TrainerConfig, device: torch.device, sizes: Sizes
) -> Classic:
    """The model, built whole on the CPU of each rank, spread over all ranks; a collective."""
    parallelism = config.parallelism
    mesh = None
    if parallelism.strategy != "no_shard":
        mesh = build_mesh(sizes, device, group_timeout_s(config))
    model = start.model
    outline, names = Outline.of(model, config), _first_names(model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    units = {id(module) for module in units_of(model, parallelism.wrap)}
    if config.compile:
        compile_blocks(model)
    with _known_warnings():
        wrapped = FullyShardedDataParallel(
            model,
            sharding_strategy=_torch_strategy(parallelism),
            # Without it, hybrid sharding on the CPU shards nothing and lets the ranks drift apart,
            # in silence.
            device_mesh=mesh,
            auto_wrap_policy=partial(
                lambda_auto_wrap_policy, lambda_fn=lambda module: id(module) in units
            ),
            mixed_precision=_mixed_precision(parallelism),
            cpu_offload=CPUOffload(True) if parallelism.cpu_offload else None,
            device_id=device,  # left out, FSDP on the CPU looks for a GPU, and fails
            use_orig_params=True,  # frozen parameters need it
        )
    result = Classic(config, device, sizes, outline, wrapped, bare=model)
    result.groups = [] if mesh is None else mesh.get_all_groups()
    result.shard = dist.get_rank() % sizes.shard
    result.names = names
    group = None if mesh is None else mesh.get_group("shard")
    result.layout = FlatParts(result.named, shapes, group, device)
    return result


def _first_names(model: nn.Module) -> dict[str, str]:
    state = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return {name: first.setdefault(id(value), name) for name, value in tensors.items()}


def _torch_strategy(parallelism: ParallelismConfig) -> ShardingStrategy:
    if parallelism.strategy == "no_shard":
        return ShardingStrategy.NO_SHARD
    keeps = parallelism.fsdp.reshard_after_forward is False
    if parallelism.strategy == "hybrid_shard":
        return ShardingStrategy._HYBRID_SHARD_ZERO2 if keeps else ShardingStrategy.HYBRID_SHARD
    keeps = keeps or parallelism.strategy == "shard_grad_op"
    return ShardingStrategy.SHARD_GRAD_OP if keeps else ShardingStrategy.FULL_SHARD


def _mixed_precision(parallelism: ParallelismConfig) -> MixedPrecision | None:
    def dtype(format: str | None) -> torch.dtype | None:
        return None if format in (None, "fp32") else DTYPES[str(format)]

    formats = {parallelism.precision, parallelism.reductions, parallelism.buffers}
    if formats <= {"fp32", None}:
        return None
    return MixedPrecision(
        param_dtype=dtype(parallelism.precision),
        reduce_dtype=DTYPES[parallelism.reductions],
        buffer_dtype=dtype(parallelism.buffers),
    )


@contextlib.contextmanager
def _known_warnings() -> Iterator[None]:
    """What torch says of NO_SHARD, which the user has chosen."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated")
        yield
