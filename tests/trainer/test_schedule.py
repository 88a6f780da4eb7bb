"""The learning rate is a function of the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import ScheduleConfig
from trainer.optim import learning_rate


def test_warm_up_then_half_a_cosine() -> None:
    schedule = ScheduleConfig(warmup_steps=10, kind="cosine", min_lr_ratio=0.1)
    rates = [learning_rate(step, 110, 2.0, schedule) for step in (1, 5, 10, 60, 110)]
    assert rates == pytest.approx([0.2, 1.0, 2.0, 1.1, 0.2])


def test_constant_after_warm_up() -> None:
    schedule = ScheduleConfig(warmup_steps=4, kind="constant", min_lr_ratio=0.1)
    rates = [learning_rate(step, 6, 1.0, schedule) for step in range(1, 7)]
    assert rates == [0.25, 0.5, 0.75, 1, 1, 1]


@given(st.integers(1, 50), st.integers(0, 60), st.floats(0, 1))
def test_it_never_leaves_its_bounds(steps: int, warmup: int, low: float) -> None:
    schedule = ScheduleConfig(warmup_steps=warmup, kind="cosine", min_lr_ratio=low)
    rates = [learning_rate(step, steps, 1.0, schedule) for step in range(1, steps + 1)]
    assert all(0 < rate <= 1 + 1e-12 for rate in rates) or low == 0
    after = rates[max(0, warmup - 1) :]
    assert after == sorted(after, reverse=True)
    assert all(rate >= low - 1e-12 for rate in after)
