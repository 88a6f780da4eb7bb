"""The ranks as a mesh: which of them hold copies, which share one, which split each block."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainer.config import TrainerConfig
from trainer.contract import ConfigurationError

DIMENSIONS = ("replicate", "shard", "tensor")  # outermost first: what talks most lies closest


@dataclass(frozen=True)
class Sizes:
    """Ranks along each dimension of the mesh; rank = (replica * shard + part) * tensor + place."""

    replicate: int
    shard: int
    tensor: int

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole mesh."""
        return self.replicate * self.shard * self.tensor

    @property
    def num_data_ranks(self) -> int:
        """Ranks with samples of their own, each of them `tensor` ranks that share them."""
        return self.replicate * self.shard


def sizes_of(config: TrainerConfig) -> Sizes:
    """The mesh of a configuration; ConfigurationError if it is not that of all ranks."""
    parallelism = config.parallelism
    whole = not parallelism.uses_fsdp or parallelism.strategy == "no_shard"
    num_data_ranks = config.num_ranks // parallelism.tensor
    shard = 1 if whole else parallelism.shard_group or num_data_ranks
    sizes = Sizes(num_data_ranks // shard, shard, parallelism.tensor)
    if sizes.num_ranks != config.num_ranks:
        raise ConfigurationError(
            "parallelism: give shard_group and tensor numbers that divide the ranks:"
            f" {sizes.replicate} copies x {sizes.shard} shards x tensor {sizes.tensor} are"
            f" {sizes.num_ranks} ranks, and the job has {config.num_ranks}"
        )
    return sizes


def build_mesh(sizes: Sizes, device: torch.device, timeout_s: float) -> DeviceMesh:
    """The mesh without its dimensions of one rank; it keeps the shard dimension in any case.

    A collective. timeout_s: longest wait in a collective along a dimension. (init_device_mesh
    would give its groups torch's default of half an hour.)
    """
    ranks = torch.arange(sizes.num_ranks).view(sizes.replicate, sizes.shard, sizes.tensor)
    kept = [d for d, name in enumerate(DIMENSIONS) if ranks.shape[d] > 1 or name == "shard"]
    groups = [_group(ranks, dimension, timeout_s) for dimension in kept]
    if len(kept) == 1:
        return DeviceMesh.from_group(groups[0], device.type, mesh_dim_names=("shard",))
    layout = ranks.reshape([ranks.shape[dimension] for dimension in kept])
    names = tuple(DIMENSIONS[dimension] for dimension in kept)
    return DeviceMesh.from_group(groups, device.type, layout, mesh_dim_names=names)


def _group(ranks: torch.Tensor, dimension: int, timeout_s: float) -> dist.ProcessGroup:
    """This rank's group along one dimension; made by all ranks."""
    if ranks.shape[dimension] == ranks.numel():
        assert dist.group.WORLD is not None
        return dist.group.WORLD
    lines = ranks.movedim(dimension, -1).reshape(-1, ranks.shape[dimension]).tolist()
    timeout = datetime.timedelta(seconds=timeout_s)
    own: dist.ProcessGroup
    own, _ = dist.new_subgroups_by_enumeration(lines, timeout=timeout)  # type: ignore[no-untyped-call]
    return own
