"""Waiting asks for all runs at once and ends when all have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from orchestrator.backends import waiting
from orchestrator.backends.base import Backend, Handle, State, Status
from orchestrator.backends.site import NoAnswer
from orchestrator.backends.waiting import wait
from orchestrator.errors import BackendError

HANDLES = [Handle("x", name, Path("/x")) for name in ("one", "two")]


@dataclass
class Scripted:
    """Answers with one pair of states after the other; the last one stays."""

    answers: list[tuple[State, State]]
    poll_s: float = 0.01
    asked: list[int] = field(default_factory=list)

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        self.asked.append(len(handles))
        states = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return [Status(h.run, state) for h, state in zip(handles, states, strict=False)]


def test_it_returns_when_all_have_ended() -> None:
    backend = Scripted([
        (State.PENDING, State.RUNNING), (State.RUNNING, State.RUNNING),
        (State.RUNNING, State.DONE), (State.FAILED, State.DONE),
    ])  # fmt: skip
    seen: list[tuple[str, State]] = []
    statuses = wait(
        cast(Backend, backend), HANDLES, on_change=lambda s: seen.append((s.run, s.state))
    )
    assert [s.state for s in statuses] == [State.FAILED, State.DONE]
    assert backend.asked == [2, 2, 2, 2]
    assert seen == [
        ("one", State.PENDING), ("two", State.RUNNING), ("one", State.RUNNING),
        ("two", State.DONE), ("one", State.FAILED),
    ]  # fmt: skip


def test_past_its_time_it_names_what_goes_on() -> None:
    backend = cast(Backend, Scripted([(State.DONE, State.RESTARTING)]))
    with pytest.raises(BackendError, match=r"after 0\.02 s still .*: two \(RESTARTING\)$"):
        wait(backend, HANDLES, timeout_s=0.02)


def test_a_question_without_an_answer_is_asked_again() -> None:
    class Away(Scripted):
        def status(self, handles: Sequence[Handle]) -> list[Status]:
            if not self.asked:
                self.asked.append(0)
                raise NoAnswer("squeue did not end within 60 s")
            return super().status(handles)

    seen: list[Status] = []
    wait(cast(Backend, Away([(State.DONE, State.DONE)])), HANDLES, on_change=seen.append)
    assert [status.state for status in seen] == [State.UNKNOWN] * 2 + [State.DONE] * 2
    assert seen[0].reason == "squeue did not end within 60 s"


def test_nothing_to_wait_for_is_over() -> None:
    assert wait(cast(Backend, Scripted([(State.DONE, State.DONE)])), []) == []


def test_what_stays_unknown_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "UNKNOWN_LIMIT_S", 0.3)
    short = [(State.DONE, State.UNKNOWN), (State.DONE, State.RUNNING), (State.DONE, State.DONE)]
    assert len(wait(cast(Backend, Scripted(short)), HANDLES)) == 2
    with pytest.raises(BackendError, match=r"nothing is known for 0\.3 s of: two \(UNKNOWN\)$"):
        wait(cast(Backend, Scripted([(State.DONE, State.UNKNOWN)])), HANDLES)
    mixed = cast(Backend, Scripted([(State.RUNNING, State.UNKNOWN)]))
    with pytest.raises(BackendError, match=r"after 0\.5 s .*: one \(RUNNING\), two \(UNKNOWN\)$"):
        wait(mixed, HANDLES, timeout_s=0.5)
