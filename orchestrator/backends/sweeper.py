"""Looks after a sweep on this machine: starts the supervisors of its elements, some at a time.

The local backend starts it detached, with the lock of the sweep already taken. It needs the
standard library alone. Whenever it ends, also by SIGKILL, the kernel ends all that it had started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.backends import processes
from orchestrator.backends.base import State
from orchestrator.backends.detached import detach, take_signals
from orchestrator.backends.record import Record
from orchestrator.backends.supervisor import (
    CANCEL_FILE,
    LOG_FILE,
    NODE_PY,
    PACKAGES,
    TICK_S,
    say,
)
from orchestrator.contract import RunPaths

AGAIN = "submit the sweep again to continue"
# -I: nothing in the run folder or the user's folder can take the place of a module.
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from orchestrator.backends.supervisor import look_after; sys.exit(look_after(sys.argv[2:]))"
)


@dataclass
class Sweeper:
    """The sweep in `run_dir`; `record` is its own, and that of each element which waits."""

    run_dir: Path
    workdir: str
    numbers: list[int]
    at_once: int
    record: Record
    cancelled: bool = False
    going: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self) -> State:
        """Run all elements, each within the budgets of its job, and return the sweep's state."""
        waiting = list(self.numbers)
        while waiting or self.going:
            if self.cancelled:
                self._stop(waiting)
                waiting = []
            while waiting and len(self.going) < self.at_once:
                self._try_to_start(waiting.pop(0))
            time.sleep(TICK_S)
            self._collect()
        paths = (RunPaths(self.run_dir / str(number)) for number in self.numbers)
        if all(path.done.exists() for path in paths):
            return State.DONE
        return State.CANCELLED if self.cancelled else State.FAILED

    def announce(self) -> None:
        """Note that all elements wait."""
        for number in self.numbers:
            reason = "waits for its turn"
            note(self.run_dir / str(number), replace(self.record, reason=reason))

    def _try_to_start(self, number: int) -> None:
        """Start an element, or note why it cannot be: the others are to go on."""
        try:
            self._start(number)
        except OSError as error:
            reason = f"it could not be started: {error}"
            say(f"element {number}: {reason}")
            record = replace(self.record, state=State.FAILED.value, reason=reason)
            note(self.run_dir / str(number), record)

    def _start(self, number: int) -> None:
        run_dir = self.run_dir / str(number)
        if (run_dir / CANCEL_FILE).exists():
            return
        guard = [sys.executable, "-I", "-S", str(NODE_PY), "--guard", str(os.getpid())]
        command = [sys.executable, "-I", "-c", START, str(PACKAGES), str(run_dir), self.workdir]
        with (run_dir / LOG_FILE).open("ab") as log:
            self.going[number] = subprocess.Popen(
                [*guard, *command],
                cwd=run_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _collect(self) -> None:
        """Forget those that have ended. One that never took over its record waits no more."""
        for number in [n for n, child in self.going.items() if child.poll() is not None]:
            del self.going[number]
            run_dir = self.run_dir / str(number)
            found = Record.read(run_dir)
            if found is None or found.pid == self.record.pid:
                state = State.CANCELLED if self.cancelled else State.FAILED
                reason = AGAIN if self.cancelled else f"it did not start; see {LOG_FILE}"
                note(run_dir, replace(self.record, state=state.value, reason=reason))

    def _stop(self, waiting: list[int]) -> None:
        """Ask those that run to checkpoint and stop; the others do not start any more."""
        for child in self.going.values():
            child.send_signal(signal.SIGTERM)
        for number in waiting:
            record = replace(self.record, state=State.CANCELLED.value, reason=AGAIN)
            note(self.run_dir / str(number), record)


def note(run_dir: Path, record: Record) -> None:
    """Write a record; a full disk does not end the sweep."""
    try:
        record.write(run_dir)
    except OSError as error:
        say(f"cannot write the record: {error}")


def main(argv: list[str]) -> int:
    """RUN_DIR WORKDIR LOCK_FD AT_ONCE NUMBER...: the lock is held while this process lives."""
    run_dir, workdir, lock, at_once = Path(argv[0]), argv[1], int(argv[2]), int(argv[3])
    os.set_inheritable(lock, False)
    ready = detach()
    processes.become_subreaper()
    record = Record.of_this_process()
    sweeper = Sweeper(run_dir, workdir, [int(n) for n in argv[4:]], at_once, record)
    take_signals(sweeper)
    sweeper.announce()
    running = replace(record, state=State.RUNNING.value)
    note(run_dir, running)
    if Record.read(run_dir) != running:
        return 1  # nobody could follow or cancel it; what is wrong has just been said
    os.write(ready, b"1")
    os.close(ready)
    state = sweeper.run()
    note(run_dir, replace(record, state=state.value))
    return 0
