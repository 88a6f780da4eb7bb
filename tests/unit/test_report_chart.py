"""Axes that can be read, and charts of which nothing lies outside."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.axis import BYTES, NUMBERS, PLAIN, SECONDS, Units, axis_of, words
from orchestrator.report.chart import HEIGHT, WIDTH, Form, Line, Mark, chart

UNITS = st.sampled_from([PLAIN, NUMBERS, BYTES, SECONDS])
values = st.floats(-1e15, 1e15) | st.floats(-1.0, 1.0)
points = st.lists(st.tuples(st.integers(0, 10**9), values), min_size=1, max_size=80)


@given(values, values, UNITS, st.booleans())
def test_an_axis_holds_its_values_and_its_ticks_differ(
    one: float, other: float, units: Units, from_zero: bool
) -> None:
    low, high = sorted((one, other))
    axis = axis_of(low, high, units, from_zero=from_zero)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= low <= high <= axis.high + slack
    places = [value for value, _ in axis.ticks]
    assert places == sorted(set(places))
    assert (places[0], places[-1]) == (axis.low, axis.high)
    assert 2 <= len(places) <= 8
    texts = [text for _, text in axis.ticks]
    assert len(set(texts)) == len(texts)


@given(values, values, UNITS)
def test_a_tight_axis_ends_at_its_values(one: float, other: float, units: Units) -> None:
    low, high = sorted((one, other))
    axis = axis_of(low, high, units, from_zero=True, tight=True)
    assert axis.low <= low <= high <= axis.high
    assert (axis.low, axis.high) == (min(low, 0), max(high, 0)) or high - low < 1e-6
    assert axis.ticks
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)


@pytest.mark.parametrize(
    ("low", "high", "units", "texts"),
    [
        (0, 10, PLAIN, ["0", "2", "4", "6", "8", "10"]),
        (2.31, 5.4, PLAIN, ["2", "3", "4", "5", "6"]),
        (0, 3.9e9, BYTES, ["0 GB", "1 GB", "2 GB", "3 GB", "4 GB"]),
        (0, 7000, SECONDS, ["0 min", "50 min", "100 min", "150 min"]),
        (0, 0.0003, PLAIN, ["0.0000", "0.0001", "0.0002", "0.0003"]),
        (5, 5, PLAIN, ["2", "3", "4", "5", "6", "7", "8"]),
    ],
)
def test_ticks_are_round(low: float, high: float, units: Units, texts: list[str]) -> None:
    assert [text for _, text in axis_of(low, high, units).ticks] == texts


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (None, PLAIN, "-"),
        (0, BYTES, "0 B"),
        (2.71828, PLAIN, "2.718"),
        (400.0, PLAIN, "400"),
        (12345, NUMBERS, "12.35 k"),
        (342_294_528, BYTES, "342.3 MB"),
        (90000, SECONDS, "25 h"),
        (0.0000123, PLAIN, "1.230e-05"),
    ],
)
def test_words_of_values(value: float | None, units: Units, text: str) -> None:
    assert words(value, units) == text


@given(points, points, UNITS)
def test_nothing_of_a_chart_lies_outside(
    first: list[tuple[int, float]], second: list[tuple[int, float]], units: Units
) -> None:
    lines = [Line("a", sorted(dict(first).items())), Line("b", sorted(dict(second).items()), 1)]
    made = chart(Form("t", "y", y_units=units, marks=[Mark(0, "m")]), lines)
    assert made is not None
    for line in made.lines:
        numbers = [float(n) for n in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", line.path)]
        assert all(0 <= x <= WIDTH for x in numbers[::2])
        assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    for band in made.bands:
        assert made.left - 0.1 <= band.x <= band.x + band.width <= made.right + 0.2
        assert "\n" in band.title
    assert all(len(row) == len(made.head) for row in made.rows)


def test_a_chart_says_in_words_what_it_shows() -> None:
    made = chart(Form("Loss", "nats"), [Line("training", [(1, 5.5), (300, 2.25)])])
    assert made is not None
    assert made.label == "Loss, nats by step: training from 5.500 at 1 to 2.250 at 300"
    assert made.rows[0] == ["1", "5.500"]
    assert made.rows[-1] == ["300", "2.250"]
    assert made.bands[-1].title == "step 300\ntraining: 2.250"


def test_a_single_point_is_a_dot_and_no_point_no_chart() -> None:
    made = chart(Form("Loss", "nats"), [Line("training", [(1, 5.5)])])
    assert made is not None
    assert len(made.lines[0].dots) == 1
    assert chart(Form("Loss", "nats"), [Line("training", [])]) is None
