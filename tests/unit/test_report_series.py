"""Curves in bounded memory: nothing that sticks out is lost, and the newest of a step counts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.series import BUCKET_POINTS, Between, Series, thinned

heights = st.floats(-1e9, 1e9)
steps = st.lists(st.integers(0, 10_000), max_size=300)


def series_of(points: list[tuple[int, float]], max_buckets: int = 600) -> Series:
    series = Series(max_buckets)
    for x, y in points:
        series.add(x, y)
    return series


def test_a_short_series_is_whole() -> None:
    points = [(x, float(x % 7)) for x in range(600)]
    assert series_of(points).points() == points


def test_a_spike_of_one_step_in_many_stays() -> None:
    series = Series()
    for x in range(200_000):
        series.add(x, 1.0 + (x == 123_456) * 50 - (x == 154_321) * 3)
    found = dict(series.points())
    assert found[123_456] == 51
    assert found[154_321] == -2
    assert series.highest == (123_456, 51)
    assert series.lowest == (154_321, -2)
    assert len(found) <= 4 * 600


@given(st.lists(heights, min_size=1, max_size=400), st.integers(2, 20), st.integers(1, 50))
def test_the_ends_the_lowest_and_the_highest_stay(
    ys: list[float], max_buckets: int, stride: int
) -> None:
    points = [(stride * k, y) for k, y in enumerate(ys)]
    series = series_of(points, max_buckets)
    found = series.points()
    assert set(found) <= set(points)
    assert found == sorted(found)
    assert len(found) <= 4 * max_buckets
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert min(y for _, y in found) == min(ys)
    assert max(y for _, y in found) == max(ys)


@given(steps)
def test_a_step_that_is_made_again_takes_the_place_of_all_from_there_on(xs: list[int]) -> None:
    series, kept = Series(), dict[int, float]()
    for number, x in enumerate(xs):
        series.add(x, float(number))
        kept = {old: y for old, y in kept.items() if old < x} | {x: float(number)}
    assert set(series.points()) == set(kept.items())


@given(steps, st.integers(2, 8))
def test_a_thinned_series_holds_nothing_of_what_was_made_again(xs: list[int], most: int) -> None:
    series, kept = Series(most), dict[int, float]()
    for number, x in enumerate(xs):
        series.add(x, float(number))
        kept = {old: y for old, y in kept.items() if old < x} | {x: float(number)}
    assert set(series.points()) <= set(kept.items())
    assert series.last == (max(kept.items()) if kept else None)


def test_what_is_no_number_is_left_out() -> None:
    series = series_of([(1, math.nan), (2, math.inf), (3, 4.0)])
    assert series.points() == [(3, 4.0)]
    assert not series_of([(1, math.nan)])


@given(st.lists(heights, max_size=BUCKET_POINTS))
def test_thinning_keeps_four_at_most(ys: list[float]) -> None:
    points = list(enumerate(ys))
    found = thinned(points)
    assert len(found) <= 4
    assert thinned(found) == found


def test_between_points_are_straight_lines() -> None:
    at = Between([(0, 0.0), (10, 100.0), (20, 100.0)])
    assert [at(x) for x in (-5, 0, 5, 10, 15, 99)] == [0, 0, 50, 100, 100, 100]
