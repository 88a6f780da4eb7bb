"""How FullyShardedDataParallel lays parameters on ranks: each rank of a shard group has a run of
numbers of the flattened parameter, perhaps none, and the runs follow one another by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.boxes import Box, boxes_of_run


class FlatParts:
    """The layout of some parameters, and of tensors that lie as they do; others are whole.

    shapes: of the whole parameters. group: the ranks that share a copy; None if each has its own.
    Making one is a collective of the group.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        shapes: Mapping[str, torch.Size],
        group: dist.ProcessGroup | None,
        device: torch.device,
    ) -> None:
        self._shapes, self._group = shapes, group
        own = torch.tensor([p.numel() for _, p in named], device=device)  # [parameters]
        every = [own]
        if group is not None:
            every = [torch.empty_like(own) for _ in range(group.size())]
            dist.all_gather(every, own, group=group)
        lengths = torch.stack(every, dim=1).tolist()  # [parameters][ranks]
        self._lengths = {name: runs for (name, _), runs in zip(named, lengths, strict=True)}
        for name, runs in self._lengths.items():
            if sum(runs) != shapes[name].numel():
                raise RuntimeError(f"{name}: runs of {runs} numbers are not all of {shapes[name]}")

    def shape(self, name: str, part: Tensor) -> list[int]:
        return list(self._shapes.get(name, part.shape))

    def whole(self, name: str, part: Tensor) -> Tensor:
        """Each rank sends as many numbers as the longest run has."""
        if name not in self._lengths or self._group is None:
            return part.detach()
        lengths = self._lengths[name]
        own = part.new_zeros(max(lengths))
        own[: part.numel()] = part.flatten()
        every = [torch.empty_like(own) for _ in lengths]
        dist.all_gather(every, own, group=self._group)
        runs = [run[:length] for run, length in zip(every, lengths, strict=True)]
        return torch.cat(runs).view(self._shapes[name])

    def put(self, name: str, part: Tensor, whole: Tensor) -> None:
        if self.split(name, part):
            first = self._first(name)
            whole = whole.flatten()[first : first + part.numel()].view(part.shape)
        part.copy_(whole)

    def boxes(self, name: str, part: Tensor) -> list[Box]:
        part = part.detach()
        if not self.split(name, part):
            return [Box((0,) * part.dim(), part)]
        return boxes_of_run(self._shapes[name], self._first(name), part.view(-1))

    def split(self, name: str, part: Tensor) -> frozenset[str]:
        spread = name in self._lengths and self._group is not None
        return frozenset({"shard"}) if spread else frozenset()

    def _first(self, name: str) -> int:
        """Where this rank's run begins in the flattened parameter."""
        assert self._group is not None
        return sum(self._lengths[name][: self._group.rank()])
