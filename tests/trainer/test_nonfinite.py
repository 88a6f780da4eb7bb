"""A step whose gradient is no number changes nothing, and is told."""

from __future__ import annotations

import copy
import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranks import grouped, run_ranks
from trainer.nonfinite import Fault, Guard, Verdict, diverged, judge

NAN, INF = math.nan, math.inf
flags = st.lists(st.booleans(), max_size=12)


@given(flags, st.integers(0, 3), st.integers(0, 3))
def test_rows_of_skipped_steps(good: list[bool], in_a_row: int, limit: int) -> None:
    """Against a plain reading of the words: the first step with more than `limit` bad ones."""
    in_a_row = min(in_a_row, limit)
    norms = [1.0 if flag else NAN for flag in good]
    losses = [2.0 if flag else INF for flag in good]
    found = judge(11, norms, losses, in_a_row, limit)
    history = [False] * in_a_row + good
    too_many = [
        end for end in range(in_a_row, len(history))
        if end >= limit and not any(history[end - limit : end + 1])
    ]  # fmt: skip
    if too_many:
        assert found.fault is not None
        assert (found.fault.step, found.fault.what) == (
            11 + too_many[0] - in_a_row,
            "gradient norm",
        )
        good = good[: too_many[0] - in_a_row]
    else:
        assert found.fault is None
    assert found.skipped == [11 + i for i, flag in enumerate(good) if not flag]


def test_a_loss_that_is_no_number_ends_it_though_the_gradient_is_one() -> None:
    assert judge(1, [1.0, 1.0], [1.0, INF], 0, 5) == Verdict([], 0, Fault(2, "loss", INF))


@pytest.mark.case("T29")
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("clip", [True, False])
def test_the_optimizer_leaves_out_the_step(bad: float, clip: bool) -> None:
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]
    optimizer = torch.optim.AdamW(weights, 0.1, weight_decay=0.5, fused=True)
    guard = Guard(optimizer)

    def step(value: float) -> None:
        for weight in weights:
            weight.grad = torch.full_like(weight, value)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if clip:
            torch.nn.utils.clip_grads_with_norm_(weights, 1.0, norm)
        guard.before_step(norm)
        optimizer.step()

    step(2.0)
    before = copy.deepcopy([optimizer.state_dict(), weights])
    step(bad)
    assert str([optimizer.state_dict(), weights]) == str(before)
    step(3.0)
    assert str(weights) != str(before[1])
    assert all(torch.isfinite(weight).all() for weight in weights)
    norms = guard.read()
    assert [math.isfinite(norm) for norm in norms] == [True, False, True]
    assert guard.read() == []


def told(losses: list[float]) -> str:
    return str(diverged(Fault(8, "gradient norm", NAN, 3), losses[int(os.environ["RANK"])]))


def test_the_rank_where_it_began_is_named() -> None:
    words = run_ranks(3, grouped, told, [1.0, NAN, 1.0])
    assert len(set(words)) == 1
    assert "the gradient norm of step 8 is nan, after 3 skipped in a row" in words[0]
    assert f"no number: rank 1 ({os.uname().nodename}): nan" in words[0]


def test_where_all_losses_were_numbers_the_gradient_overflowed() -> None:
    words = run_ranks(2, grouped, told, [1.0, 2.0])
    assert "No rank's own loss was: the gradient overflowed" in words[0]
