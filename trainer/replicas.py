"""Whether replicas hold the same weights, bit for bit, told by a hash of each parameter."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from trainer.agreement import minority
from trainer.contract import ConfigurationError

CHUNK = 1 << 22  # elements hashed at once: 32 MiB of each temporary tensor
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicasDiffer(RuntimeError):
    """Weights that must be equal are not: a rank computes, or remembers, something else."""


class Part(NamedTuple):
    """What a rank holds of a parameter: the number of the part, and its hash."""

    shard: int
    digest: int


def check(named: Iterable[tuple[str, Tensor]], step: int, shard: int = 0) -> None:
    """Raise ReplicasDiffer, on all ranks, if a parameter differs between its replicas.

    A collective over all ranks: 16 bytes for each parameter; nothing in a world of one rank, in
    which any strategy is fine. Raises ConfigurationError if no parameter has replicas.

    Args:
        named: this rank's parameters by name. A DTensor tells which part of it lies here.
        step: optimizer steps done.
        shard: number of the part that a plain tensor is; ranks with the same number are replicas.
    """
    if dist.get_world_size() == 1:
        return
    names, parts = [], []
    for name, value in named:
        local = value.to_local() if isinstance(value, DTensor) else value
        number = shard_of(value) if isinstance(value, DTensor) else shard
        names.append(name)
        parts.append(torch.stack([torch.tensor(number, device=local.device), hash_of(local)]))
    own = torch.stack(parts)  # [parameters, 2]
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    held = [[Part(*part) for part in rank] for rank in torch.stack(every).tolist()]
    compare(names, held, step)


@torch.no_grad()
def hash_of(value: Tensor) -> Tensor:
    """An int64 scalar of the bits of `value` and their places; the same on every device.

    Sum and products wrap around. The factors are odd, so that a change of one element always shows.
    """
    bits = value.contiguous().view(INTEGERS[value.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for first in range(0, len(bits), CHUNK):
        chunk = bits[first : first + CHUNK].to(torch.int64)
        places = torch.arange(first, first + len(chunk), device=value.device)
        total += (chunk * (2 * places + 1)).sum()
    return total


def shard_of(value: DTensor) -> int:
    """The number of this rank's part: ranks that differ only in replicated dimensions share it."""
    mesh = value.device_mesh
    number = 0
    for size, place, placement in zip(
        mesh.shape, mesh.get_coordinate() or (), value.placements, strict=True
    ):
        if not isinstance(placement, Replicate):
            number = number * size + place
    return number


def compare(names: Sequence[str], held: Sequence[Sequence[Part]], step: int) -> None:
    """Judge what the ranks hold, [ranks][parameters]; raises as `check` does, a collective then."""
    alone = True
    for index, name in enumerate(names):
        digests: dict[int, dict[int, int]] = {}  # by shard, then by rank
        for rank, parts in enumerate(held):
            digests.setdefault(parts[index].shard, {})[rank] = parts[index].digest
        for replicas in digests.values():
            alone = alone and len(replicas) == 1
            if len(set(replicas.values())) > 1:
                raise ReplicasDiffer(_words(name, replicas, step))
    if alone:
        raise ConfigurationError(
            "parallelism.check_replicas_every: leave it out: with this strategy no two ranks hold"
            " the same part of a parameter, so there is nothing to compare"
        )


def _words(name: str, replicas: dict[int, int], step: int) -> str:
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    ranks = list(replicas)
    odd, usual = ([ranks[i] for i in group] for group in minority(list(replicas.values())))
    who = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in odd)
    return (
        f"after step {step} {who} held other bits of {name} than rank {', '.join(map(str, usual))};"
        " it is the first such parameter. Look at the memory and the GPUs of that host, and for"
        " code that acts on one rank only"
    )
