"""Loss and gradient are those of all counted tokens of the global batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from ranks import grouped, run_ranks
from trainer.token_counts import IGNORED, Divisors, mask

PAD = 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_what_counts(tokens: list[int]) -> None:
    targets = torch.tensor([tokens])
    masked, count = mask(targets, PAD)
    counted = [token for token in tokens if token != PAD]
    assert count.item() == len(counted)
    logits = torch.randn(len(tokens), 4)
    loss = functional.cross_entropy(logits, masked.flatten())
    assert loss.isfinite()  # also where nothing counts
    if counted:
        sums = functional.cross_entropy(logits, targets.flatten(), reduction="none")
        expected = sums[targets.flatten() != PAD].mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert (masked == IGNORED).sum() == len(tokens) - len(counted)


def divided(counts: list[list[int]]) -> list[float]:
    rank = torch.distributed.get_rank()
    own = [torch.tensor(count) for count in counts[rank]]
    divisors = Divisors(own)
    return [divisors[micro].item() for micro in range(len(own))]


@pytest.mark.case("T08")
def test_the_mean_over_ranks_is_that_over_all_tokens() -> None:
    counts = [[5, 3], [0, 2], [7, 1]]
    losses = [[0.5, 2.0], [9.0, 1.25], [3.0, 0.125]]
    found = run_ranks(3, grouped, divided, counts)
    sums = [
        sum(x / y for x, y in zip(*pair, strict=True)) for pair in zip(losses, found, strict=True)
    ]
    total = sum(map(sum, counts))
    expected = (
        sum(
            n * x
            for ns, xs in zip(counts, losses, strict=True)
            for n, x in zip(ns, xs, strict=True)
        )
        / total
    )
    assert sum(sums) / 3 == pytest.approx(expected, rel=1e-6)
    assert found[1][0] == math.inf


def test_equal_counts_divide_by_the_number_of_micro_batches_exactly() -> None:
    assert run_ranks(2, grouped, divided, [[31] * 3] * 2) == [[3.0] * 3] * 2


def test_nothing_counts_anywhere() -> None:
    assert run_ranks(2, grouped, divided, [[0], [0]]) == [[math.inf]] * 2
