"""Where the time of an attempt went, as rank 0 books it: JSON lines in goodput.jsonl.

The lines of an attempt follow one another without a gap, from the start of the process on. They
are few, however long the run: one at each checkpoint and at the end, and between them one when a
hundredth of the attempt's time is not booked yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from trainer.contract import VERSION, Contract
from trainer.metrics import Clock, open_for_lines

UNBOOKED_SHARE = 0.01
START_TIME = 22  # number of the field in /proc/self/stat, in ticks since boot: proc(5)
KIND_OF = {"data": "data", "compute": "compute", "checkpoint": "save", "evaluation": "evaluation"}


class Ledger:
    """Writer of goodput.jsonl; on other ranks than 0 it does nothing.

    Making one books the time since the process began. A line that the disk refuses is told of and
    ends the booking, not the training.

    Args:
        step: optimizer steps done, from which this attempt goes on.
        restore_s: seconds of the time so far in which a checkpoint was looked for and loaded.

    Attributes:
        outcome: how the attempt ended, for the last line; None until that is agreed on.
    """

    def __init__(self, contract: Contract, step: int, restore_s: float) -> None:
        self.outcome: str | None = None
        self._attempt, self._step = contract.attempt, step
        age_s = process_age_s()
        self._age_s = 0.0  # of the attempt, as far as it is booked
        self._began = time.time() - age_s
        self._booked = dict.fromkeys(KIND_OF, 0.0)
        self._file: IO[str] | None = None
        if contract.rank == 0:
            self._open(contract.ledger_file)
            initialisation_s = max(age_s - restore_s, 0.0)
            self._write(step, {"initialisation": initialisation_s, "restore": restore_s})

    def book(self, step: int, clock: Clock, at_once: bool = False) -> None:
        """Write what the clock has read since the last line, if that is due or wanted at once.

        step: optimizer steps done.
        """
        spent = {name: clock.totals[name] - self._booked[name] for name in KIND_OF}
        least_s = 0.0 if at_once else UNBOOKED_SHARE * self._age_s
        if self._file is not None and sum(spent.values()) > least_s:
            self._booked = dict(clock.totals)
            self._write(step, {KIND_OF[name]: spent[name] for name in KIND_OF})

    def close(self, step: int, clock: Clock) -> None:
        """Write the last line and close the file."""
        clock.read()
        self.book(step, clock, at_once=True)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> None:
        try:
            self._file = open_for_lines(path)
        except OSError as error:
            self._give_up(error)

    def _write(self, step: int, seconds: Mapping[str, float]) -> None:
        if self._file is None:
            return
        begin = self._began + self._age_s
        self._age_s += sum(seconds.values())
        made = step > self._step
        line: dict[str, Any] = {
            "version": VERSION,
            "attempt": self._attempt,
            "from": round(begin, 6),
            "to": round(self._began + self._age_s, 6),
            "first_step": self._step + 1 if made else None,
            "last_step": step if made else None,
            "seconds": {kind: round(part_s, 6) for kind, part_s in seconds.items() if part_s},
        }
        self._step = step
        if self.outcome is not None:
            line["outcome"] = self.outcome
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        print(f"trainer: goodput.jsonl is not written any more: {error}", file=sys.stderr)
        if self._file is not None:
            with contextlib.suppress(OSError):  # it would write again what was just refused
                self._file.close()
            self._file = None


def process_age_s() -> float:
    """Seconds since this process was started, to a hundredth; imports count."""
    # The name of the program comes before, in brackets, and may hold anything.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[START_TIME - 3])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(age_s, 0.0)
