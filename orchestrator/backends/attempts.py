"""What follows an attempt that has ended: the rules by which the supervisor starts the next."""

from __future__ import annotations

from orchestrator import contract
from orchestrator.backends.base import State
from orchestrator.backends.record import Ended, Launch

# What ends this soon will do so again, until somebody has mended it: the pauses grow.
QUICK_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 1.0, 60.0
# The gravest first: what one node knows better than the others counts for all.
GRAVITY = (contract.EXIT_CONFIGURATION, contract.EXIT_HANG, contract.EXIT_FAILED,
           contract.EXIT_REQUEUE, contract.EXIT_DONE)  # fmt: skip


def gravest(codes: list[int]) -> int:
    """The code of an attempt whose nodes left with `codes`; a signal or any other code is 1, and
    so is none at all."""
    known = [code if code in GRAVITY else contract.EXIT_FAILED for code in codes]
    return min(known, key=GRAVITY.index, default=contract.EXIT_FAILED)


def next_state(ended: tuple[Ended, ...], launch: Launch, run_s: float) -> tuple[State, str]:
    """What follows the newest of the attempts that have ended: RESTARTING, or a final state.

    Args:
        ended: at least one, the newest last.
        run_s: seconds from the start of the first of them to that of the next.
    """
    last = ended[-1]
    if last.code == contract.EXIT_DONE:
        return State.DONE, last.reason
    if last.code == contract.EXIT_CONFIGURATION:
        return State.FAILED, f"configuration, not repeated: {last.reason}"
    is_requeue = last.is_requeue
    used = sum(entry.is_requeue == is_requeue for entry in ended)
    word, budget = ("requeues", launch.requeues) if is_requeue else ("failures", launch.failures)
    if used > budget:
        return State.FAILED, f"attempts.{word} of {budget} used up: {last.reason}"
    if launch.deadline_s is not None and run_s >= launch.deadline_s:
        passed = f"attempts.deadline of {launch.deadline_s:g} s passed, counted from this submit"
        return State.FAILED, f"{passed}: {last.reason}"
    return State.RESTARTING, f"{used} of {budget} {word}: {last.reason}"


def pause_s(before_s: float, lasted_s: float) -> float:
    """Seconds between an attempt that lasted `lasted_s` and the next; `before_s` was the last
    pause."""
    if lasted_s >= QUICK_S:
        return 0.0
    return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * before_s))
