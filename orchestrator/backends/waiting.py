"""Waiting for runs on any backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.backends.base import Backend, Handle, Status
from orchestrator.errors import BackendError


def wait(
    backend: Backend,
    handles: Sequence[Handle],
    *,
    timeout_s: float | None = None,
    on_change: Callable[[Status], None] | None = None,
) -> list[Status]:
    """Return the statuses of runs once all are final: one question for all of them each time.

    Args:
        timeout_s: how long to wait; None for as long as it takes.
        on_change: called with each status when it is first known and whenever its state, attempt
            or reason has changed.

    Raises BackendError if the time is over before; it names the runs that still go on.
    """
    start_s = time.monotonic()
    seen: dict[int, tuple[object, ...]] = {}
    while True:
        statuses = backend.status(handles)
        for number, status in enumerate(statuses):
            words = (status.state, status.attempt, status.reason)
            if on_change is not None and seen.get(number) != words:
                on_change(status)
            seen[number] = words
        if all(status.state.is_final for status in statuses):
            return statuses
        spent_s = time.monotonic() - start_s
        if timeout_s is not None and spent_s >= timeout_s:
            going = [f"{s.run} ({s.state.value})" for s in statuses if not s.state.is_final]
            raise BackendError(f"after {timeout_s:g} s still not at an end: {', '.join(going)}")
        time.sleep(_pause_s(backend.poll_s, spent_s, timeout_s))


def _pause_s(poll_s: float, spent_s: float, timeout_s: float | None) -> float:
    """Soon at first, for short runs, then as seldom as the backend wants it."""
    pause_s = min(poll_s, max(0.2, spent_s / 4))
    return pause_s if timeout_s is None else min(pause_s, max(0.0, timeout_s - spent_s))
