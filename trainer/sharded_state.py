"""Weights and optimizer state as each rank holds them, to be written and read by every rank.

Names are "model.NAME" and "optimizer.NAME.KEY", KEY being exp_avg, exp_avg_sq or step; what the
model ties is there once, under its first name. They fit any strategy and any number of ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.boxes import Box
from trainer.devices import module_of
from trainer.full_state import STEP, misfits, refuse
from trainer.mesh import Sizes
from trainer.parallelized import Parallelized
from trainer.shards import Part, Parts, Shards

MODEL, OPTIMIZER = "model.", "optimizer."


class Held(NamedTuple):
    """A tensor as this rank holds it. split: the dimensions of the mesh that it is spread over."""

    name: str
    part: Part
    split: frozenset[str]

    @property
    def size_bytes(self) -> int:
        """Of what this rank holds."""
        return sum(box.values.nbytes for box in self.part.boxes)


def staged(
    parallel: Parallelized, optimizer: torch.optim.Optimizer, into: Parts | None = None
) -> Parts:
    """Copies, on the CPU, of what this rank has to write of the state; no collective.

    What several ranks hold is shared out among them, so that each writes about as much. into: what
    an earlier call returned: its memory is used again, and so it must have been written.
    """
    old = into or {}
    held = [*_weights(parallel), *_moments(parallel, optimizer)]
    mine = [*_buffers(parallel), *_share(held, parallel.sizes, dist.get_rank())]
    parts = {name: Part(part.shape, _copies(part, old.get(name))) for name, part, _ in mine}
    if parallel.device.type != "cpu":
        module_of(parallel.device).synchronize(parallel.device)
    return parts


def _copies(part: Part, old: Part | None) -> list[Box]:
    spare = [] if old is None else [box.values for box in old.boxes]
    return [
        Box(offsets, _copy(values, spare[i] if i < len(spare) else None))
        for i, (offsets, values) in enumerate(part.boxes)
    ]


def _copy(values: Tensor, spare: Tensor | None) -> Tensor:
    if spare is None or spare.shape != values.shape or spare.dtype != values.dtype:
        # Pinned: a device copies into such memory by itself, and faster.
        pin = values.device.type != "cpu"
        spare = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=pin)
    return spare.copy_(values, non_blocking=True)


# What there is.


def _first_names(parallel: Parallelized) -> dict[str, Tensor]:
    """The tensors of the model's state, each once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, value in parallel.entries().items():
        if isinstance(value, Tensor):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _weights(parallel: Parallelized) -> Iterator[Held]:
    for name, value in _first_names(parallel).items():
        if isinstance(value, nn.Parameter):
            split = parallel.layout.split(name, value)
            yield Held(MODEL + name, _part(parallel, name, value), split)


def _buffers(parallel: Parallelized) -> Iterator[Held]:
    """Of rank 0 alone: those of other ranks may differ, as running means do."""
    for name, value in _first_names(parallel).items():
        if not isinstance(value, nn.Parameter) and dist.get_rank() == 0:
            yield Held(MODEL + name, _part(parallel, name, value), frozenset())


def _moments(parallel: Parallelized, optimizer: torch.optim.Optimizer) -> Iterator[Held]:
    for name, parameter in parallel.named:
        split = parallel.layout.split(name, parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            if key != STEP or _has_origin(parallel.layout.boxes(name, parameter)):
                yield Held(_full(name, key), _part(parallel, name, value, key), split)


def _part(parallel: Parallelized, name: str, value: Tensor, key: str | None = None) -> Part:
    """What this rank has of a weight, or of an entry of its optimizer state."""
    if key == STEP:
        return Part((), [Box((), value.detach())])
    layout = parallel.layout
    return Part(tuple(layout.shape(name, value)), layout.boxes(name, value))


def _has_origin(boxes: Collection[Box]) -> bool:
    """Of the ranks that have different boxes of a tensor, this is so on one."""
    return any(not any(box.offsets) for box in boxes)


def _full(name: str, key: str) -> str:
    return f"{OPTIMIZER}{name}.{key}"


# Who writes it.


def _share(held: Collection[Held], sizes: Sizes, rank: int) -> Iterator[Held]:
    """Those that fall to this rank; each goes to the replica that has least so far.

    Replicas hold the same, so that they come to the same without asking one another.
    """
    loads: dict[frozenset[str], list[tuple[int, int]]] = {}
    for each in sorted(held, key=lambda held: (-held.size_bytes, held.name)):
        own, number = replica(sizes, each.split, rank)
        load = loads.setdefault(each.split, [(0, index) for index in range(number)])
        size_bytes, writer = load[0]
        heapq.heapreplace(load, (size_bytes + each.size_bytes, writer))
        if writer == own:
            yield each


def replica(sizes: Sizes, split: Collection[str], rank: int) -> tuple[int, int]:
    """This rank's number among the ranks with the same part, and how many they are.

    split: the dimensions of the mesh along which parts differ.
    """
    place = {
        "replicate": rank // (sizes.shard * sizes.tensor),
        "shard": rank // sizes.tensor % sizes.shard,
        "tensor": rank % sizes.tensor,
    }
    index, number = 0, 1
    for dimension, own in place.items():
        if dimension not in split:
            size = getattr(sizes, dimension)
            index, number = index * size + own, number * size
    return index, number


# Loading.


def load_shards(folder: Path, parallel: Parallelized, optimizer: torch.optim.Optimizer) -> None:
    """Put back what write_shards wrote, on any layout; each rank reads what it holds.

    A parameter that never had a gradient has no state. Raises ValueError with all that does not
    fit, and BrokenCheckpoint.
    """
    shards = Shards(folder)
    weights, keys = _first_names(parallel), _keys(shards.shapes)
    known = {name: parameter for name, parameter in parallel.named if name in keys}
    wanted = {MODEL + name: parallel.layout.shape(name, w) for name, w in weights.items()}
    for name, parameter in known.items():
        shape = parallel.layout.shape(name, parameter)
        wanted |= {_full(name, key): [] if key == STEP else shape for key in keys[name]}
    refuse(misfits(wanted, shards.shapes))
    targets = {MODEL + name: _part(parallel, name, w) for name, w in weights.items()}
    for name, parameter in known.items():
        state = {key: _empty(parameter, key) for key in keys[name]}
        optimizer.state[parameter] = state
        targets |= {_full(name, key): _part(parallel, name, v, key) for key, v in state.items()}
    shards.read_into(targets)


def _keys(names: Collection[str]) -> dict[str, list[str]]:
    """The keys of each parameter's optimizer state, of names of tensors."""
    keys: dict[str, list[str]] = {}
    for full in names:
        if full.startswith(OPTIMIZER):
            name, _, key = full.removeprefix(OPTIMIZER).rpartition(".")
            keys.setdefault(name, []).append(key)
    return {name: sorted(found) for name, found in keys.items()}


def _empty(parameter: nn.Parameter, key: str) -> Tensor:
    if key == STEP:
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter, requires_grad=False)
