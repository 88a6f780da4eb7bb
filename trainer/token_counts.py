"""Means over all counted tokens of the global batch, where micro-batches differ in how many count.

A target that equals train.data.ignore_token (padding) is not counted. The loss of a micro-batch is
a mean over its own counted tokens, and ranks are averaged: one with few of them would weigh too
much. What makes it right is the number of each micro-batch, and one sum over ranks per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # inputs and targets, int64 [B, T] each
IGNORED = -100  # default of ignore_index of torch.nn.functional.cross_entropy


def mask(targets: Tensor, ignore_token: int) -> tuple[Tensor, Tensor]:
    """IGNORED in place of `ignore_token`, and how many targets count, an int64 scalar.

    Where none counts all stay as they are: the mean over none is no number, and what is wanted is
    a finite loss that weighs nothing. All work stays on the device of `targets`, int64 [B, T].
    """
    ignored = targets == ignore_token
    count = ignored.numel() - ignored.sum()
    return targets.masked_fill(ignored & (count > 0), IGNORED), count


class Divisors:
    """What to divide the mean loss of each micro-batch of a step by.

    The sum of the results, averaged over ranks, is the mean over all counted tokens of the global
    batch. Equal counts give the number of micro-batches, as without counting. A micro-batch in
    which nothing counts gives infinity, so that its loss and its gradients are zero; so do all of
    them in a step in which nothing counts on any rank.

    counts: int64 scalars of this rank's micro-batches, in their order. Making one starts a sum over
    all ranks. Ranks that share their samples (tensor parallel) count alike, which changes nothing.
    """

    def __init__(self, counts: Sequence[Tensor]) -> None:
        self._own = torch.stack(list(counts))
        self._total = self._own.sum()
        self._work = dist.all_reduce(self._total, async_op=True)
        self._values: Tensor | None = None

    def __getitem__(self, micro: int) -> Tensor:
        """That of micro-batch `micro` (from 0), a float32 scalar; the first waits for all ranks."""
        if self._values is None:
            if self._work is not None:
                self._work.wait()
            per_rank = self._total.clamp(min=1).double() / dist.get_world_size()
            self._values = (per_rank / self._own).float()
        return self._values[micro]


def counted(pairs: Iterable[Pair], ignore_token: int) -> tuple[list[Pair], Divisors]:
    """All micro-batches of a step with their targets masked, and their divisors; a collective."""
    masked = [(tokens, *mask(targets, ignore_token)) for tokens, targets in pairs]
    divisors = Divisors([count for _, _, count in masked])
    return [(tokens, targets) for tokens, targets, _ in masked], divisors
