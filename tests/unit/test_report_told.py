"""What metrics tell over attempts; nothing in a line can break the reading of the others."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report.told import Told

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["event", "step", "attempt", "time", "loss", "losses", "tokens_per_s", "step_s", "hosts",
     "world_size", "resumed_from", "path", "seconds", "reason", "changes", "peak_memory_bytes"]
)  # fmt: skip
EVENTS = st.sampled_from(
    ["start", "validation", "checkpoint", "network", "changed", "slow_save", "skipped", "x"]
)


def told_of(*entries: dict[str, Any] | str) -> Told:
    told = Told()
    for entry in entries:
        told.feed(entry if isinstance(entry, str) else json.dumps(entry))
    return told


def start(attempt: int, step: int, **more: Any) -> dict[str, Any]:
    facts = {"world_size": 4, "num_nodes": 2, "steps": 90, "resumed_from": None, "time": 5.0}
    return {"event": "start", "attempt": attempt, "step": step, **facts, **more}


def step(attempt: int, number: int, *losses: float | None, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "step": number, "loss": losses[-1], "losses": losses, **more}


def test_losses_of_all_steps_and_the_newest_of_those_made_again() -> None:
    told = told_of(
        start(1, 0), step(1, 2, 5.0, 4.0), step(1, 4, 3.0, 2.0),
        start(2, 2, resumed_from="step-2", time=9.0), step(2, 3, 1.5),
    )  # fmt: skip
    assert told.curve("loss").points() == [(1, 5.0), (2, 4.0), (3, 1.5)]
    assert [s.step for s in told.starts.values()] == [0, 2]
    assert (told.starts[2].ranks, told.starts[2].resumed_from) == (4, "step-2")
    assert (told.starts[1].first, told.starts[2].first) == (5.0, 9.0)


def test_what_an_attempt_lost_is_cut_when_the_next_begins() -> None:
    told = told_of(
        start(1, 0),
        step(1, 4, 1.0, 2.0, 3.0, 4.0),
        {"event": "validation", "step": 4, "loss": 7.0, "attempt": 1},
        start(2, 2),
    )
    assert told.curve("loss").last == (2, 2.0)
    assert not told.curve("validation")


def test_a_loss_that_is_no_number_leaves_a_gap() -> None:
    told = told_of(step(1, 3, 1.0, None, 3.0), '{"step": 4, "loss": NaN}', step(1, 5, 2.0))
    assert told.curve("loss").points() == [(1, 1.0), (3, 3.0), (5, 2.0)]


def test_half_a_line_and_lines_of_others_do_not_count() -> None:
    told = told_of('{"step": 1, "loss"', "[]", "", "hello", step(1, 1, 2.0))
    assert told.num_lines == 1
    assert told.curve("loss").points() == [(1, 2.0)]


def test_the_median_speed_is_that_of_lines_to_three_digits() -> None:
    speeds = [1004.0, 9.0, 2000.0, 3000.0, 4000.0]
    told = told_of(*(step(1, n, 1.0, tokens_per_s=s, step_s=0.5) for n, s in enumerate(speeds, 1)))
    assert told.median_tokens_per_s == 2000
    assert told.tokens_per_step == 2000
    assert Told().median_tokens_per_s is None


def test_checkpoints_and_what_did_not_go_as_usual() -> None:
    told = told_of(
        {"event": "checkpoint", "step": 4, "attempt": 1, "time": 8.5, "path": "c", "seconds": 2},
        {"event": "checkpoint_failed", "step": 8, "attempt": 1, "reason": "no space"},
        {"event": "slow_save", "step": 8, "attempt": 1, "seconds": 90.5, "limit": 60},
        {"event": "network", "step": 1, "attempt": 1, "agrees": False, "faults": ["rank 1 uses X"]},
    )
    (saved,) = told.saved
    assert (saved.step, saved.time, saved.seconds, saved.blocked_s) == (4, 8.5, 2.0, None)
    words = [text for _, text in told.notes]
    assert words == [
        "step 8 no checkpoint: no space",
        "a stop may take 90.5 s, longer than timeouts.shutdown (60 s)",
        "step 1 the network is not used as promised: rank 1 uses X",
    ]


@settings(max_examples=40)
@given(st.lists(st.dictionaries(KEYS, EVENTS | json_values, max_size=5), max_size=4))
def test_no_line_breaks_the_reading(entries: list[dict[str, Any]]) -> None:
    told = told_of(*entries, step(1, 3, 2.0))
    assert told.curve("loss").last == (3, 2.0)
