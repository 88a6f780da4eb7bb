"""What a run's ledger says about where its time went. Pure: lines in, sums out.

The lines are those of `goodput.jsonl` (docs/contract.md). Any program may write them: one that is
cut or has something else in it does not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

BOOKED = ("compute", "data", "initialisation", "restore", "save", "evaluation")
KINDS = (*BOOKED, "repeated", "recovery", "waiting")
MAX_COUNT = 2**63 - 1
MAX_TIME_S = 1e11  # the year 5138


@dataclass(frozen=True)
class Interval:
    """One line: seconds by kind between two times, and the steps made meanwhile, if any."""

    attempt: int
    begin: float
    end: float
    steps: range
    seconds: Mapping[str, float]
    ended_well: bool


@dataclass(frozen=True)
class Goodput:
    """Sums over the attempts of a run.

    seconds: by kind (KINDS); compute and data without those of repeated steps.
    """

    num_attempts: int
    steps_repeated: int
    seconds: Mapping[str, float]

    @property
    def wall_s(self) -> float:
        """From the start of the first attempt to the last line, without waiting."""
        return sum(self.seconds.values()) - self.seconds["waiting"]

    @property
    def share(self) -> float:
        """The part of wall_s in which steps that counted were computed, from 0 to 1."""
        wall_s = self.wall_s
        return min(1.0, self.seconds["compute"] / wall_s) if wall_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For a program to read."""
        return {
            "share": round(self.share, 6),
            "wall_s": round(self.wall_s, 3),
            "attempts": self.num_attempts,
            "steps_repeated": self.steps_repeated,
            "seconds": {kind: round(self.seconds[kind], 3) for kind in KINDS},
        }

    def __str__(self) -> str:
        shown = [kind for kind in KINDS if self.seconds[kind] >= 0.05 or kind == "compute"]
        parts = [f"{kind} {words_of(self.seconds[kind])}" for kind in shown]
        attempts = "1 attempt" if self.num_attempts == 1 else f"{self.num_attempts} attempts"
        again = "1 step" if self.steps_repeated == 1 else f"{self.steps_repeated} steps"
        steps = f", {again} made again" if self.steps_repeated else ""
        head = f"goodput {100 * self.share:.1f} % of {words_of(self.wall_s)}"
        return f"{head}: {', '.join(parts)} ({attempts}{steps})"


def read_goodput(lines: Iterable[bytes | str]) -> Goodput | None:
    """The sums over all lines that count; None if there is none.

    lines: they are gone through twice, so that of a ledger of any length no more than a few figures
    of each attempt are held.
    """
    attempts: dict[int, _Attempt] = {}
    for interval in intervals(lines):
        attempts.setdefault(interval.attempt, _Attempt()).add(interval)
    if not attempts:
        return None
    _set_kept(attempts)
    seconds = dict.fromkeys(KINDS, 0.0)
    steps_repeated = 0
    for interval in intervals(lines):
        if interval.attempt in attempts:  # else it has begun meanwhile
            steps_repeated += _add_booked(seconds, interval, attempts[interval.attempt].kept)
    _add_gaps(seconds, [attempts[number] for number in sorted(attempts)])
    return Goodput(len(attempts), steps_repeated, seconds)


@dataclass
class _Attempt:
    """Of all lines of an attempt: times in seconds, and the first step if one was made.

    kept: the steps above it are made again by a later attempt.
    """

    begin: float = math.inf
    end: float = 0.0
    first: int | None = None
    ended_well: bool = False
    kept: int = MAX_COUNT

    def add(self, interval: Interval) -> None:
        self.begin = min(self.begin, interval.begin)
        self.end = max(self.end, interval.end)
        if interval.steps:
            begun = interval.steps.start
            self.first = begun if self.first is None else min(self.first, begun)
        self.ended_well |= interval.ended_well


def intervals(lines: Iterable[bytes | str]) -> Iterator[Interval]:
    """The lines that count, in their order."""
    for line in lines:
        interval = _interval_of(line)
        if interval is not None:
            yield interval


def _set_kept(attempts: Mapping[int, _Attempt]) -> None:
    kept = MAX_COUNT
    for number in sorted(attempts, reverse=True):
        attempt = attempts[number]
        attempt.kept = kept
        kept = min(kept, kept if attempt.first is None else attempt.first - 1)


def _add_booked(seconds: dict[str, float], interval: Interval, kept: int) -> int:
    """Add what a line tells; returns the number of its steps that a later attempt made again."""
    again = _num_above(interval.steps, kept)
    share = again / len(interval.steps) if again else 0.0
    for kind in BOOKED:
        part_s = interval.seconds.get(kind, 0.0)
        lost_s = part_s * share if kind in ("compute", "data") else 0.0
        seconds[kind] += part_s - lost_s
        seconds["repeated"] += lost_s
    return again


def _num_above(steps: range, kept: int) -> int:
    return len(range(max(steps.start, kept + 1), steps.stop))


def _add_gaps(seconds: dict[str, float], attempts: list[_Attempt]) -> None:
    """Add the time between attempts; two that overlap have none."""
    for before, after in pairwise(attempts):
        gap_s = after.begin - before.end
        seconds["waiting" if before.ended_well else "recovery"] += max(gap_s, 0.0)


def _interval_of(line: bytes | str) -> Interval | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # the last line of a killed writer may be cut
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("seconds"), dict):
        return None
    attempt = _count(entry.get("attempt"))
    begin, end = _time(entry.get("from")), _time(entry.get("to"))
    if attempt is None or begin is None or end is None:
        return None
    booked = {kind: _time(entry["seconds"].get(kind)) or 0.0 for kind in BOOKED}
    steps = _steps(entry.get("first_step"), entry.get("last_step"))
    ended_well = entry.get("outcome") in ("done", "drained")
    return Interval(attempt, begin, end, steps, booked, ended_well)


def _steps(first: object, last: object) -> range:
    """The steps of a line; none if it does not say, or not in order."""
    begin, end = _count(first), _count(last)
    return range(0) if begin is None or end is None else range(begin, max(begin, end + 1))


def _count(value: object) -> int | None:
    # Below the highest, so that one more is still a size that len() can return.
    return value if type(value) is int and 1 <= value < MAX_COUNT else None


def _time(value: object) -> float | None:
    """A number of seconds from 0."""
    if type(value) is int and 0 <= value <= MAX_TIME_S:
        return float(value)
    return value if type(value) is float and 0 <= value <= MAX_TIME_S else None


def words_of(seconds: float) -> str:
    """A duration for people, to about one part in sixty: `3 h 12 min`, `4.2 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(math.floor(seconds / 60 + 0.5), 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
