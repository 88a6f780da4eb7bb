"""How a supervisor leaves the command that starts it, and what signals mean to it."""

from __future__ import annotations

import os
import signal
from typing import Protocol


def detach() -> int:
    """Fork; the parent leaves with 0 once a byte is written to the pipe that the child gets, and
    with 1 if the child ends before. So whoever started this waits for no longer than it takes."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os._exit(0 if os.read(reader, 1) else 1)
    os.close(reader)
    return writer


class Cancellable(Protocol):
    cancelled: bool


def take_signals(target: Cancellable) -> None:
    """SIGTERM cancels; the end of a terminal means nothing."""

    def cancel(_number: int, _frame: object) -> None:
        target.cancelled = True

    signal.signal(signal.SIGTERM, cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
