"""Where a part of a tensor lies in the whole: boxes of rows, columns and so on."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor


class Box(NamedTuple):
    """Some numbers of a tensor: the index of the first in each dimension, and the numbers.

    values: as many dimensions as the whole has; a view of what a rank holds.
    """

    offsets: tuple[int, ...]
    values: Tensor


def boxes_of_run(shape: Sequence[int], first: int, run: Tensor) -> list[Box]:
    """The numbers from `first` on of a tensor of this shape that was flattened, as boxes.

    run: one dimension. Of n dimensions at most 2n - 1 boxes come out: what is left of a row, whole
    rows, and the beginning of a row, each row cut the same way. An empty tensor is one box.
    """
    if len(shape) <= 1 or prod(shape) == 0:
        whole = len(shape) == 0 or prod(shape) == 0
        offsets = (0,) * len(shape) if whole else (first,)
        return [Box(offsets, run.view(shape) if whole else run)] if whole or len(run) else []
    row = prod(shape[1:])
    boxes: list[Box] = []
    while len(run):
        index, inside = divmod(first, row)
        if inside or len(run) < row:
            taken = min(len(run), row - inside)
            cut = boxes_of_run(shape[1:], inside, run[:taken])
            boxes += [Box((index, *box.offsets), box.values.unsqueeze(0)) for box in cut]
        else:
            taken = len(run) // row * row
            boxes.append(Box((index, *(0 for _ in shape[1:])), run[:taken].view(-1, *shape[1:])))
        first, run = first + taken, run[taken:]
    return boxes
