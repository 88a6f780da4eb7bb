"""A sheet of memory on which a process writes its stacks when it is asked to by a signal.

The signal's handler is C code and needs no lock of Python, so it answers also where a thread does
not let go of the interpreter. The sheet is no file on a disk: node.py reads it by /proc/PID/fd.
"""

from __future__ import annotations

import faulthandler
import os
import signal

# Not used by torch, gloo, NCCL or torchrun's ranks; where it is not caught it ends a process.
SIGNAL = signal.SIGQUIT
NAME = "orchestrate-stacks-{pid}"


class Sheet:
    """This process's sheet: a line that tells of life, then the stacks that it was asked for."""

    def __init__(self) -> None:
        self._file = os.memfd_create(NAME.format(pid=os.getpid()))
        self._beats = 0
        os.write(self._file, self._line(0.0))
        faulthandler.register(SIGNAL, file=self._file, all_threads=True)

    def beat(self, limit_s: float) -> None:
        """Say that Python's threads run; without the next beat for limit_s they do not."""
        self._beats += 1
        os.pwrite(self._file, self._line(limit_s), 0)

    def _line(self, limit_s: float) -> bytes:
        return f"{self._beats:>12} {limit_s:>18.3f}\n".encode()
