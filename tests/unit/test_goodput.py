"""goodput: the sums of any ledger, whatever is in its lines."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.goodput import BOOKED, KINDS, Goodput, read_goodput, words_of

KEYS = ["attempt", "from", "to", "first_step", "last_step", "seconds", "outcome", *BOOKED]

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["done", "x"])
values = st.recursive(
    plain | st.just(10**400),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=4)
    ),
    max_leaves=6,
)
times = st.integers(0, 10**6) | st.floats(0, 1e6)
likely = st.fixed_dictionaries(
    {"attempt": st.integers(1, 4), "from": times, "to": times,
     "seconds": st.dictionaries(st.sampled_from(BOOKED), times | values)},
    optional={"first_step": st.integers(0, 40) | values, "last_step": st.integers(0, 40) | values,
              "outcome": values},
)  # fmt: skip


def lines_of(*entries: dict[str, Any]) -> list[str]:
    return [json.dumps(entry) for entry in entries]


def line(
    attempt: int, begin: float, end: float, steps: tuple[int, int] | None = None, **more: Any
) -> dict[str, Any]:
    """A line in which what `more` does not tell went into computing, if there are steps."""
    outcome = more.pop("outcome", None)
    seconds = {"compute": end - begin - sum(more.values()), **more} if steps else more
    first, last = steps or (None, None)
    entry = {"attempt": attempt, "from": begin, "to": end, "first_step": first, "last_step": last}
    return entry | {"seconds": seconds} | ({"outcome": outcome} if outcome else {})


def read(*entries: dict[str, Any]) -> Goodput:
    goodput = read_goodput(lines_of(*entries))
    assert goodput is not None
    return goodput


@settings(deadline=None, max_examples=400)
@given(st.lists(likely | st.dictionaries(st.sampled_from(KEYS), values, max_size=7), max_size=6))
@example([{"attempt": 1, "from": 0, "to": 1, "seconds": {}, "first_step": 1,
           "last_step": 2**63 - 1}, {"attempt": 1, "from": 1, "to": 1, "seconds": {}}])  # fmt: skip
def test_any_objects_give_sums_that_add_up(entries: list[dict[str, Any]]) -> None:
    goodput = read_goodput(lines_of(*entries))
    if goodput is None:
        return
    assert set(goodput.seconds) == set(KINDS)
    assert all(0 <= part_s < math.inf for part_s in goodput.seconds.values())
    assert goodput.wall_s >= 0
    assert 0 <= goodput.share <= 1
    assert goodput.steps_repeated >= 0
    assert str(goodput).isprintable()
    json.dumps(goodput.as_dict(), allow_nan=False)


@given(st.binary(max_size=60))
def test_any_bytes_are_no_line(data: bytes) -> None:
    assert read_goodput(data.splitlines()) is None


def test_without_lines_nothing_is_said() -> None:
    assert read_goodput([]) is None
    assert read_goodput(['{"attempt": 1, "from": 1, "to": ', "[]", '{"attempt": 1}']) is None


def test_steps_made_again_and_the_time_between_do_not_count() -> None:
    goodput = read(
        line(1, 100, 110, initialisation=8, restore=2),
        line(1, 110, 120, (1, 10), data=1),
        line(1, 120, 121, save=1),
        line(1, 121, 125, (11, 14), data=2),
        line(2, 140, 150, initialisation=10),
        line(2, 150, 160, (11, 20), data=5),
    )
    assert goodput.steps_repeated == 4
    assert goodput.seconds == {
        "compute": 9 + 5, "data": 1 + 5, "initialisation": 18, "restore": 2, "save": 1,
        "evaluation": 0, "repeated": 4, "recovery": 15, "waiting": 0,
    }  # fmt: skip
    assert goodput.wall_s == 60
    assert goodput.share == pytest.approx(14 / 60)


def test_a_step_made_three_times_was_made_again_twice() -> None:
    goodput = read(
        line(1, 0, 10, (1, 10)), line(2, 10, 20, (6, 10)), line(3, 20, 30, (6, 8)),
    )  # fmt: skip
    assert goodput.steps_repeated == 5 + 5
    assert goodput.seconds["repeated"] == 5 + 10


def test_an_attempt_that_fell_back_further_counts_for_all_before() -> None:
    goodput = read(line(1, 0, 10, (1, 10)), line(2, 10, 20, (11, 20)), line(3, 20, 30, (6, 15)))
    assert goodput.steps_repeated == 5 + 10


def test_an_attempt_without_a_step_repeats_nothing() -> None:
    goodput = read(
        line(1, 0, 10, (1, 10)), line(2, 12, 14, restore=2), line(3, 16, 20, (11, 12)),
    )  # fmt: skip
    assert goodput.steps_repeated == 0
    assert goodput.seconds["recovery"] == 4


@pytest.mark.parametrize(
    ("outcome", "kind"), [("drained", "waiting"), ("done", "waiting"), ("?", "recovery")]
)
def test_a_pause_after_a_stop_that_was_asked_for_is_no_recovery(outcome: str, kind: str) -> None:
    goodput = read(line(1, 0, 10, (1, 10), outcome=outcome), line(2, 90, 100, (11, 20)))
    assert goodput.seconds[kind] == 80
    assert goodput.wall_s == (20 if kind == "waiting" else 100)


def test_two_attempts_at_once_have_no_time_between_them() -> None:
    goodput = read(line(1, 0, 100, (1, 10)), line(2, 50, 60, (1, 2)))
    assert goodput.seconds["recovery"] == 0
    assert goodput.wall_s == 110


def test_the_words() -> None:
    goodput = read(line(1, 0, 30, (1, 5), save=3), line(2, 40, 100, (6, 9)))
    assert str(goodput) == (
        "goodput 87.0 % of 1 min 40 s: compute 1 min 27 s, save 3.0 s, recovery 10.0 s (2 attempts)"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (59.4, "59.4 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"),
     (11_520, "3 h 12 min"), (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert words_of(seconds) == words
