"""Signals that ask this process to stop: remembered from the start on, instead of ending it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import types
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

received = False


def handle() -> None:
    """From now on SIGTERM and SIGUSR1 are remembered in `received`. For the main thread."""
    for number in SIGNALS:
        signal.signal(number, _on_signal)


def _on_signal(_number: int, _frame: types.FrameType | None) -> None:
    global received
    received = True


@contextlib.contextmanager
def limited(limit_s: float, leave: Callable[[], object]) -> Iterator[None]:
    """Where the block waits for other ranks, which may never come: after a signal that wait has an
    end. Call leave() in a thread if the block lasts limit_s longer than that.

    The main thread may be waiting outside of Python, where no handler runs. For the main thread.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()

    def watch() -> None:
        select.select([reader], [], [])
        if not ended.wait(limit_s):
            leave()

    before = signal.set_wakeup_fd(writer)  # gets a byte at each signal, whatever is running
    if received:
        os.write(writer, b"\0")
    thread = threading.Thread(target=watch, name="signals at the start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writer)  # ends the wait for a byte
        thread.join()
        os.close(reader)
