"""What this rank is doing now, for whoever watches it.

A watchdog reads `current`; tests append a listener to act in a chosen phase. With no listener a
change of phase costs one function call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PHASES = ("start", "load", "step", "evaluation", "save", "publish", "prune", "exit")


class Phase(NamedTuple):
    """A phase (one of PHASES) and the optimizer steps that were done when it began."""

    name: str
    step: int


Listener = Callable[[str, int], None]

current = Phase("start", 0)
listeners: list[Listener] = []


def enter(name: str, step: int) -> None:
    """Make `name` the current phase and tell every listener, in the order of their adding."""
    global current
    current = Phase(name, step)
    tell(name, step)


def tell(name: str, step: int) -> None:
    """Tell every listener of a phase of another thread; the current phase stays the main one's."""
    for listener in listeners:
        listener(name, step)
