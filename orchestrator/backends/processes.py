"""Processes of this machine by /proc: who is alive, who descends from whom, how all of it ends.

A process is named by its pid and its start time, never by its command: a pid that was given out
again is another process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process: its pid and when it started, in clock ticks since boot (proc(5), field 22)."""

    pid: int
    start_time: int

    def is_alive(self) -> bool:
        """Whether this very process still runs; one that ended and was not collected does not."""
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.start_time

    def send(self, number: int) -> bool:
        """Send a signal; False if the process is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def boot_id() -> str:
    """An id of this boot of this machine: pids of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def this_process() -> Process:
    """The calling process."""
    process = find(os.getpid())
    if process is None:
        raise OSError("/proc does not show this process: is /proc mounted?")
    return process


def find(pid: int) -> Process | None:
    """The process that has `pid` now; None if there is none."""
    stat = _stat(pid)
    return None if stat is None else Process(pid, stat[1])


def descendants(root: int) -> list[Process]:
    """Every living process below the one with pid `root`, itself not among them."""
    stats = {int(p): s for p in os.listdir("/proc") if p.isdecimal() and (s := _stat(int(p)))}
    below = newest = {root}
    while newest:
        newest = {pid for pid, (parent, _) in stats.items() if parent in newest} - below
        below = below | newest
    return [Process(pid, stats[pid][1]) for pid in below - {root} if pid in stats]


def become_subreaper() -> None:
    """From now on orphans below this process become its children, so none escapes it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap() -> None:
    """Collect the children that have ended. Not for use beside a Popen that still runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def end_descendants(root: int, timeout_s: float) -> list[Process]:
    """Kill everything below `root` until nothing is left; return what would not go in time."""
    deadline = time.monotonic() + timeout_s
    while (left := descendants(root)) and time.monotonic() < deadline:
        for process in left:
            process.send(signal.SIGKILL)
        if root == os.getpid():
            reap()
        time.sleep(POLL_S)
    return left


def kill_tree(root: Process, timeout_s: float) -> list[Process]:
    """Kill a process and all below it at once; return what would not go in time.

    The root is stopped first, so that it starts nothing new, and killed last: while it is there,
    orphans stay below it.
    """
    if not root.send(signal.SIGSTOP):
        return []
    left = end_descendants(root.pid, timeout_s)
    root.send(signal.SIGKILL)
    return left if await_end(root, timeout_s) else [root, *left]


def await_end(process: Process, timeout_s: float) -> bool:
    """Wait until a process has ended; False if it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _stat(pid: int) -> tuple[int, int] | None:
    """(parent's pid, start time); None for no process and for one that has ended (a zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold blanks and brackets
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))
