"""Waiting for runs on any backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.backends.base import Backend, Handle, State, Status
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError

# A restart of a scheduler's daemons takes minutes at most; what stays unknown for longer stays so.
UNKNOWN_LIMIT_S = 600.0


def wait(
    backend: Backend,
    handles: Sequence[Handle],
    *,
    timeout_s: float | None = None,
    on_change: Callable[[Status], None] = lambda status: None,
) -> list[Status]:
    """Return the statuses of runs once all are final: one question for all of them each time.

    Args:
        timeout_s: how long to wait; None for as long as it takes.
        on_change: called with each status when it is first known and whenever its state, attempt
            or reason has changed.

    Raises BackendError if the time is over before, and after ten minutes in which nothing was known
    of any run that has not ended; it names the runs that are not at an end.
    """
    start_s = known_s = time.monotonic()
    seen: list[Status | None] = [None] * len(handles)
    while True:
        statuses = _asked(backend, handles)
        for status in _changed(seen, statuses):
            on_change(status)
        seen[:] = statuses
        going = [status for status in statuses if not status.state.is_final]
        if not going:
            return statuses
        now_s = time.monotonic()
        if any(status.state is not State.UNKNOWN for status in going):
            known_s = now_s
        if timeout_s is not None and now_s - start_s >= timeout_s:
            raise BackendError(f"after {timeout_s:g} s still not at an end: {_names(going)}")
        if now_s - known_s >= UNKNOWN_LIMIT_S:
            raise BackendError(f"nothing is known for {UNKNOWN_LIMIT_S:g} s of: {_names(going)}")
        time.sleep(_pause_s(backend.poll_s, now_s - start_s, timeout_s))


def _asked(backend: Backend, handles: Sequence[Handle]) -> list[Status]:
    """The statuses; UNKNOWN for all where nothing answers, which may pass."""
    try:
        return backend.status(handles)
    except NoAnswer as error:
        return [Status(handle.run, State.UNKNOWN, reason=str(error)) for handle in handles]


def _changed(before: Sequence[Status | None], now: Sequence[Status]) -> list[Status]:
    """The statuses that differ in more than the step."""
    return [
        new
        for old, new in zip(before, now, strict=True)
        if old is None or replace(old, step=new.step, steps=new.steps) != new
    ]


def _names(statuses: Sequence[Status]) -> str:
    return ", ".join(f"{status.run} ({status.state.value})" for status in statuses)


def _pause_s(poll_s: float, spent_s: float, timeout_s: float | None) -> float:
    """Soon at first, for short runs, then as seldom as the backend wants it."""
    pause_s = min(poll_s, max(0.2, spent_s / 4))
    return pause_s if timeout_s is None else min(pause_s, max(0.0, timeout_s - spent_s))
