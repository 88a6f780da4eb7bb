"""progress: what any line of any metrics file says, and what it cannot do to who reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.progress import Progress, describe_entry, read_progress, summary

KEYS = [
    "event", "step", "steps", "attempt", "loss", "lr", "grad_norm", "tokens_per_s", "step_s",
    "world_size", "num_nodes", "parameters", "resumed_from", "loss_per_byte", "path", "seconds",
    "text", "changes", "key", "old", "new", "reason", "agrees", "faults", "promised", "transports",
]  # fmt: skip
EVENTS = [
    "start", "step", "validation", "checkpoint", "sample", "broken", "skipped", "changed",
    "network", "end", "?",
]  # fmt: skip

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    plain | st.just(10**400),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=3)
    ),
    max_leaves=5,
)
entries = st.dictionaries(st.sampled_from(KEYS), values, max_size=8).flatmap(
    lambda entry: st.sampled_from([entry, *({**entry, "event": event} for event in EVENTS)])
)


@settings(deadline=None, max_examples=500)
@given(st.lists(entries, max_size=5))
def test_any_objects_give_words_that_a_terminal_can_show(found: list[dict[str, Any]]) -> None:
    progress = Progress()
    for entry in found:
        parsed = progress.feed(json.dumps(entry))
        assert parsed is not None
        words = describe_entry(parsed)
        assert words is None or words.isprintable()
    left = progress.time_left_s
    assert left is None or left >= 0
    assert all(line.isprintable() for line in summary(progress))


@settings(deadline=None)
@given(st.binary(max_size=30) | values.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"changes":' * 100_000)
@example(b'{"step": ' + b"9" * 5000 + b"}")
@example(b'{"event": "step", "loss": 1')
def test_what_is_no_object_is_passed_over(line: bytes) -> None:
    progress = Progress()
    if progress.feed(line) is None:
        assert progress == Progress()


def test_the_words_of_each_kind_of_line() -> None:
    described = [
        describe_entry(entry)
        for entry in (
            {"event": "start", "attempt": 2, "world_size": 4, "num_nodes": 2, "parameters": 1000,
             "steps": 9, "resumed_from": "step-5"},
            {"step": 6, "loss": 1.5, "lr": 0.001, "grad_norm": 2, "tokens_per_s": 1e4},
            {"event": "validation", "step": 6, "loss": 1.25, "loss_per_byte": 1},
            {"event": "checkpoint", "step": 6, "path": "step-6", "seconds": 0.5},
            {"event": "checkpoint_failed", "step": 7, "reason": "no space"},
            {"event": "broken", "step": 5, "path": "step-6", "reason": "no manifest"},
            {"event": "skipped", "step": 5, "total": 2},
            {"event": "changed", "step": 5, "resumed_from": "step-5",
             "changes": [{"key": "train.seed", "old": 1, "new": [2]}]},
            {"event": "network", "step": 1, "agrees": False, "faults": ["rank 3 on a", "rank 4"],
             "promised": ["NET/IB"], "transports": {"NET/Socket": 2}},
            {"event": "network", "step": 1, "agrees": True, "faults": [], "promised": ["NET/IB"],
             "transports": {"NET/IB": 2, "NET/IB/GDRDMA": 6}},
            {"event": "network", "step": 1, "agrees": True, "faults": [], "promised": []},
            {"event": "network", "step": 1, "agrees": False, "faults": [str(n) for n in range(9)]},
            {"event": "sample", "text": "x"},
        )
    ]  # fmt: skip
    assert described == [
        "attempt 2: 4 ranks on 2 node(s), 1,000 parameters, 9 steps, resumed from step-5",
        "step      6  loss 1.5000  lr 1.00e-03  grad norm 2.00  10,000 tokens/s",
        "step      6  validation loss 1.2500 nats per token, 1.0000 per byte",
        "step      6  checkpoint step-6 in 0.50 s",
        "step      7  no checkpoint: no space",
        "step      5  passed over a broken checkpoint, step-6: no manifest",
        "step      5  step left out: its gradient was no number, 2 in all",
        "step      5  changed since step-5: train.seed was 1 and is [2]",
        "step      1  the network is not used as promised: rank 3 on a; rank 4",
        "step      1  the network is used as promised: NET/IB, NET/IB/GDRDMA",
        None,
        "step      1  the network is not used as promised: 0; 1; 2; 3; 4; 5; 6; 7; and 1 more",
        None,
    ]


def test_a_line_with_little_in_it_says_that_little() -> None:
    assert describe_entry({"step": 3, "loss": None, "lr": "high"}) == "step      3"
    assert describe_entry({"event": "start"}) == "attempt ?: from the start"
    assert describe_entry({"step": True, "loss": float("nan")}) == "step      ?  loss nan"


def _validation(step: int, loss: float) -> str:
    return json.dumps({"event": "validation", "step": step, "loss": loss})


START = json.dumps({"event": "start", "attempt": 1, "step": 0, "resumed_from": None})
RESUMED = json.dumps({"event": "start", "attempt": 2, "step": 5, "resumed_from": "step-5"})


def test_before_is_the_runs_first_validation_and_after_its_last() -> None:
    lines = [START, _validation(0, 5), _validation(5, 4), RESUMED, _validation(9, 3)]
    assert summary(read_progress(lines)) == [
        "validation loss before  5.0000 nats per token",
        "validation loss after   3.0000 nats per token",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [START, _validation(0, 5)],
        [START, _validation(7, 5), RESUMED, _validation(7, 5)],
        [START, _validation(0, 5), _validation(9, 4), START, _validation(0, 5)],
    ],
)
def test_one_step_is_no_before_and_after(lines: list[str]) -> None:
    assert summary(read_progress(lines)) == []


def test_a_sample_cannot_steer_the_terminal() -> None:
    sample = json.dumps({"event": "sample", "text": "a\x1b[2Jb\nc\rd\ud800"})
    lines = summary(read_progress([sample]))
    assert lines == ["sample:", "  | a?[2Jb", "  | c", "  | d?"]
