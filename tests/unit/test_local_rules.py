"""What follows an attempt: the rules of the supervisor, without a process."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.attempts import gravest, next_state, pause_s
from orchestrator.backends.base import State
from orchestrator.backends.record import Ended, Launch
from orchestrator.backends.simulated import loopback_address, reserve_port

CODES = [0, 1, 75, 78, 79, -9, -15, 3]


def launch(failures: int = 3, requeues: int = 10, deadline_s: float | None = None) -> Launch:
    return Launch("demo", 2, 2, failures, requeues, deadline_s, 30, 20)


def ended(*codes: int) -> tuple[Ended, ...]:
    return tuple(Ended(n, code, "why") for n, code in enumerate(codes, start=1))


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0), ([75, 75], 75), ([0, 75], 75), ([75, 1], 1), ([1, 78, 79], 78), ([79, 1], 79),
        ([-9, 75], 1), ([0, -15], 1), ([3], 1),
    ],
)  # fmt: skip
def test_the_gravest_code_counts(codes: list[int], code: int) -> None:
    assert gravest(codes) == code


@pytest.mark.parametrize(
    ("codes", "state"),
    [
        ([0], State.DONE),
        ([78], State.FAILED),
        ([1], State.RESTARTING),
        ([79], State.RESTARTING),
        ([75], State.RESTARTING),
        ([1, 79, 1], State.RESTARTING),
        ([1, 79, 1, 1], State.FAILED),
        ([75] * 10, State.RESTARTING),
        ([75] * 11, State.FAILED),
        ([1, 75, 1, 75, 79], State.RESTARTING),
        ([1, 75, 1, 75, 79, 1], State.FAILED),
    ],
)
def test_the_budgets_are_kept_apart(codes: list[int], state: State) -> None:
    assert next_state(ended(*codes), launch(), 0.0)[0] is state


@pytest.mark.parametrize("run_s", [5.0, 5.1])
def test_nothing_starts_after_the_deadline(run_s: float) -> None:
    assert next_state(ended(75), launch(deadline_s=5), run_s)[0] is State.FAILED
    assert next_state(ended(0), launch(deadline_s=5), run_s)[0] is State.DONE
    assert next_state(ended(75), launch(deadline_s=5), 4.9)[0] is State.RESTARTING


@given(
    failures=st.integers(0, 5),
    requeues=st.integers(0, 5),
    codes=st.lists(st.sampled_from([1, 75, 79]), min_size=20, max_size=20),
)
def test_every_run_comes_to_an_end(failures: int, requeues: int, codes: list[int]) -> None:
    limits = launch(failures, requeues)
    states = [next_state(ended(*codes[:n]), limits, 0.0)[0] for n in range(1, 21)]
    assert states.index(State.FAILED) <= failures + requeues


def test_the_pauses_after_quick_ends_grow_to_a_minute() -> None:
    pauses = [0.0]
    for _ in range(8):
        pauses.append(pause_s(pauses[-1], 0.5))
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_an_attempt_that_lasted_ends_the_pauses() -> None:
    assert pause_s(60, 10) == 0
    assert pause_s(pause_s(60, 10), 9.9) == 1


@given(codes=st.lists(st.sampled_from(CODES), min_size=1))
def test_a_code_is_one_of_the_contract(codes: list[int]) -> None:
    assert gravest(codes) in {0, 1, 75, 78, 79}
    assert (gravest(codes) == 0) == all(code == 0 for code in codes)


@given(st.sets(st.integers(0, 9999), min_size=2, max_size=2))
def test_each_node_has_an_address_of_its_own(nodes: set[int]) -> None:
    addresses = {loopback_address(node) for node in nodes}
    assert len(addresses) == 2
    for address in addresses:
        parts = [int(part) for part in address.split(".")]
        assert parts[:2] == [127, 0]
        assert 1 <= parts[3] <= 253


def test_a_port_is_reserved_while_its_mark_is_open() -> None:
    first, mark = reserve_port("seed")
    with mark:
        second, other = reserve_port("seed")
        other.close()
        assert first != second
    with socket.create_server(("127.0.0.1", first)):
        third, other = reserve_port("seed")
        other.close()
        assert third != first
