"""Parts of tensors as boxes, and which of the ranks that hold the same one writes it."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.boxes import boxes_of_run
from trainer.mesh import DIMENSIONS, Sizes
from trainer.sharded_state import replica

SHAPES = st.lists(st.integers(1, 5), max_size=4)


@given(SHAPES, st.data())
def test_the_boxes_of_a_run_are_the_run(shape: list[int], data: st.DataObject) -> None:
    """Put into an empty tensor they make the run, and no number comes twice."""
    size = prod(shape)
    first = data.draw(st.integers(0, size)) if shape else 0
    last = data.draw(st.integers(first, size)) if shape else 1
    numbers = torch.arange(1, size + 1)
    boxes = boxes_of_run(shape, first, numbers[first:last])
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    found = torch.zeros(shape, dtype=torch.int64)
    for offsets, values in boxes:
        places = zip(offsets, values.shape, strict=True)
        found[tuple(slice(start, start + length) for start, length in places)] += values
    expected = torch.where((numbers > first) & (numbers <= last), numbers, 0)
    assert torch.equal(found, expected.view(shape))


def test_an_empty_tensor_is_one_box() -> None:
    """So that its name is written."""
    (box,) = boxes_of_run([3, 0, 2], 0, torch.zeros(0))
    assert (box.offsets, box.values.shape) == ((0, 0, 0), (3, 0, 2))


@given(*[st.integers(1, 4)] * 3, st.sets(st.sampled_from(DIMENSIONS)))
def test_replicas_are_numbered(replicate: int, shard: int, tensor: int, split: set[str]) -> None:
    """Of the ranks with the same part, each has a number of its own, from 0 on."""
    sizes = Sizes(replicate, shard, tensor)
    parts: dict[tuple[int, ...], list[int]] = {}
    places = torch.cartesian_prod(*(torch.arange(n) for n in (replicate, shard, tensor)))
    for rank, place in enumerate(places.tolist()):
        index, number = replica(sizes, split, rank)
        assert number == prod(n for n, name in zip(
            (replicate, shard, tensor), DIMENSIONS, strict=True) if name not in split
        )  # fmt: skip
        part = tuple(p for p, name in zip(place, DIMENSIONS, strict=True) if name in split)
        parts.setdefault(part, []).append(index)
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in parts.values())
    assert sum(len(numbers) for numbers in parts.values()) == sizes.num_ranks
