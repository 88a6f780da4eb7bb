"""What a run's metrics tell over all its attempts, taken in line by line in bounded memory.

The lines are those of `metrics.jsonl` (docs/contract.md). Any program may write them: a value that
is missing, or of another type, counts as not given.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from orchestrator.progress import Entry, Progress, describe_entry, is_step
from orchestrator.report.clean import tidy
from orchestrator.report.series import Series

MAX_COUNT = 2**53  # beyond it a step is no number of a step
MAX_LOSSES = 1000  # of one line, by the contract
MAX_KEPT = 2000  # checkpoints and notes: the newest are shown
MAX_ATTEMPTS = 10_000
# By the key of a metrics line.
CURVES = ("tokens_per_s", "step_s", "peak_memory_bytes", "lr", "grad_norm", "mfu")
NOTED = ("broken", "changed", "checkpoint_failed", "skipped", "slow_save", "network")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was published. seconds: until then; blocked_s: for which training stood."""

    step: int
    attempt: int
    time: float | None
    path: str
    seconds: float | None
    blocked_s: float | None


@dataclass
class Started:
    """How an attempt began, and when it was heard of last (seconds since 1970)."""

    step: int
    ranks: int | None
    nodes: int | None
    resumed_from: str
    first: float | None = None
    last: float | None = None


@dataclass
class Told:
    """All that counts of the lines fed so far.

    curves: by the name of the key; `loss`, `validation`, and `time` (seconds since 1970) too.
    speeds: how many lines had which tokens per second, to three digits.
    no_loss_since: the first of the last steps whose loss was no finite number; None without such.
    notes: what did not go as usual, with attempt and words; num_notes: with those no longer kept.
    """

    progress: Progress = field(default_factory=Progress)
    curves: dict[str, Series] = field(default_factory=dict)
    speeds: Counter[float] = field(default_factory=Counter)
    tokens_per_step: int | None = None
    parameters: int | None = None
    hosts: tuple[str, ...] = ()
    starts: dict[int, Started] = field(default_factory=dict)
    saved: deque[Saved] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    num_saved: int = 0
    notes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    num_notes: int = 0
    network: Entry | None = None
    traffic: Entry | None = None
    no_loss_since: int | None = None
    num_lines: int = 0

    def feed(self, line: bytes | str) -> None:
        """Take one line in; one that is cut, or has something else in it, does not count."""
        entry = self.progress.feed(line)
        if entry is None:
            return
        self.num_lines += 1
        step = count(entry, "step")
        if is_step(entry):
            if step is not None:
                self._step(entry, step)
            return
        self._heard(entry)
        event = entry.get("event")
        if event == "start":
            self._start(entry, step or 0)
        elif event == "validation" and step is not None:
            self._add("validation", step, number(entry, "loss"))
        elif event == "checkpoint":
            self._checkpoint(entry, step or 0)
        elif event == "network":
            self.network = tidy(entry)
        elif event == "traffic":
            self.traffic = tidy(entry)
        if event in NOTED:
            self._note(entry)

    def curve(self, name: str) -> Series:
        return self.curves.get(name) or Series()

    @property
    def median_tokens_per_s(self) -> float | None:
        """Of all lines, to three digits; None if no line has it."""
        middle, seen = sum(self.speeds.values()) / 2, 0
        for speed in sorted(self.speeds):
            seen += self.speeds[speed]
            if seen >= middle:
                return speed
        return None

    def _step(self, entry: Entry, step: int) -> None:
        for at, loss in losses_of(entry, step):
            self._loss(at, loss)
        for key in CURVES:
            self._add(key, step, number(entry, key))
        speed, step_s = number(entry, "tokens_per_s"), number(entry, "step_s")
        if speed is not None and speed > 0:
            self.speeds[float(f"{speed:.3g}")] += 1
            if step_s is not None and speed * step_s < MAX_COUNT:
                self.tokens_per_step = round(speed * step_s) or None

    def _loss(self, step: int, loss: float | None) -> None:
        """A step's training loss; None for one that was no finite number."""
        self._add("loss", step, loss)
        if loss is not None:
            self.no_loss_since = None
        elif self.no_loss_since is None:
            self.no_loss_since = step

    def _start(self, entry: Entry, step: int) -> None:
        """A new attempt: what an earlier one did beyond its first step counts no more."""
        for curve in self.curves.values():
            curve.cut(step + 1)
        if self.no_loss_since is not None and self.no_loss_since > step:
            self.no_loss_since = None
        self.parameters = count(entry, "parameters") or self.parameters
        hosts = entry.get("hosts")
        if isinstance(hosts, list):
            self.hosts = tuple(host for host in hosts[:MAX_KEPT] if isinstance(host, str))
        started = self._attempt(entry)
        started.step = step
        started.ranks, started.nodes = count(entry, "world_size"), count(entry, "num_nodes")
        started.resumed_from = text(entry, "resumed_from")

    def _heard(self, entry: Entry) -> None:
        """When the attempt of an event was heard of; what is done at which time."""
        time, started = number(entry, "time"), self._attempt(entry)
        if time is None:
            return
        started.first = time if started.first is None else started.first
        started.last = time
        self._add("time", count(entry, "step") or 0, time)

    def _attempt(self, entry: Entry) -> Started:
        """What is known of an event's attempt; of one beyond the last that is kept, nothing."""
        new = Started(count(entry, "step") or 0, None, None, "")
        if len(self.starts) >= MAX_ATTEMPTS:
            return self.starts.get(count(entry, "attempt") or 0, new)
        return self.starts.setdefault(count(entry, "attempt") or 0, new)

    def _checkpoint(self, entry: Entry, step: int) -> None:
        self.num_saved += 1
        seconds = (number(entry, key) for key in ("time", "seconds", "blocked_s"))
        time, until_s, blocked_s = seconds
        attempt = count(entry, "attempt") or 0
        self.saved.append(Saved(step, attempt, time, text(entry, "path"), until_s, blocked_s))

    def _note(self, entry: Entry) -> None:
        if entry.get("event") == "skipped":
            self._loss(count(entry, "step") or 0, None)
        if entry.get("event") == "slow_save":
            needed, limit = number(entry, "seconds"), number(entry, "limit")
            over = f"longer than timeouts.shutdown ({limit or 0:g} s)"
            words: str | None = f"a stop may take {needed or 0:g} s, {over}"
        else:
            words = describe_entry(entry)
        if words is not None:
            self.num_notes += 1
            self.notes.append((count(entry, "attempt") or 0, " ".join(words.split())))

    def _add(self, name: str, x: int, y: float | None) -> None:
        if y is not None:
            self.curves.setdefault(name, Series()).add(x, y)


def losses_of(entry: Entry, step: int) -> list[tuple[int, float | None]]:
    """The training losses of a line's steps; None for one that was no finite number."""
    given = entry.get("losses")
    if not isinstance(given, list) or not given:
        loss = number(entry, "loss")
        return [(step, loss)] if "loss" in entry else []
    given = given[-min(MAX_LOSSES, step + 1) :]
    first = step - len(given) + 1
    return [(first + k, number({"loss": loss}, "loss")) for k, loss in enumerate(given)]


def number(entry: dict[str, Any], key: str) -> float | None:
    """A finite number that is no larger than a size or a time can be, else None."""
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -1e30 < value < 1e30 else None  # not so for nan, either


def count(entry: dict[str, Any], key: str) -> int | None:
    """A whole number from 0, else None."""
    value = entry.get(key)
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


def text(entry: dict[str, Any], key: str) -> str:
    """A text; empty for anything else."""
    value = entry.get(key)
    return value if isinstance(value, str) else ""
