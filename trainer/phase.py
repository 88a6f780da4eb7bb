"""What this rank is doing now, for whoever watches it.

The watchdog reads `current` and `beats`; tests append a listener to act in a chosen phase. With no
listener a change of phase costs one function call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PHASES = ("start", "rendezvous", "load", "restore", "data", "step", "evaluation", "save", "publish",
          "prune", "exit")  # fmt: skip


class Phase(NamedTuple):
    """A phase (one of PHASES) and the optimizer steps that were done when it began."""

    name: str
    step: int


Listener = Callable[[str, int], None]

current = Phase("start", 0)
beats = 0  # grows with each sign of progress
first_step: int | None = None  # steps done before this attempt's first; None until it begins
listeners: list[Listener] = []


def enter(name: str, step: int) -> None:
    """Make `name` the current phase and tell every listener, in the order of their adding."""
    follow(name, step)
    tell(name, step)


def tell(name: str, step: int) -> None:
    """Tell every listener of a phase of another thread; the current phase stays the main one's."""
    for listener in listeners:
        listener(name, step)


def follow(name: str, step: int) -> None:
    """Make `name` the current phase, whose listeners another thread has told: this one waits."""
    global current, beats
    current = Phase(name, step)
    beats += 1


def beat() -> None:
    """Say that the current phase goes on; for phases that last long, on the main thread."""
    global beats
    beats += 1
