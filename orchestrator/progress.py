"""What a run's metrics say about how far it is. Pure: lines in, progress out.

The lines are those of `metrics.jsonl` (docs/contract.md). Any program may write them, so that any
key may be missing or of another type: such a value counts as not given. An attempt repeats the
steps after the checkpoint that it resumed from: the newest line of a step counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import printable, quoted

Entry = dict[str, Any]
MAX_COUNT = 2**63 - 1
SAMPLE_LINES = 100
MOST_FAULTS = 8  # of the network that are shown


@dataclass(frozen=True)
class Validation:
    """A validation loss, in nats per token and per byte; None where it is not known."""

    step: int | None
    loss: float | None
    loss_per_byte: float | None

    def __str__(self) -> str:
        loss = "?" if self.loss is None else f"{self.loss:.4f}"
        text = f"{loss} nats per token"
        return text if self.loss_per_byte is None else f"{text}, {self.loss_per_byte:.4f} per byte"


@dataclass
class Progress:
    """State of a run after the lines fed so far; None where it is not known."""

    step: int = 0
    steps: int | None = None
    attempt: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    first_validation: Validation | None = None
    last_validation: Validation | None = None
    sample: str | None = None

    @property
    def time_left_s(self) -> float | None:
        """Seconds to the last step at the pace of the newest line; None until a pace is known."""
        step_s = self.step_s
        if self.steps is None or step_s is None or not 0 < step_s < math.inf:
            return None
        return max(0, self.steps - self.step) * step_s

    def feed(self, line: bytes | str) -> Entry | None:
        """Take one line in and return it parsed; None for one that is no metrics line."""
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a killed writer may be cut
            return None
        if not isinstance(entry, dict):
            return None
        handler = _EVENTS.get(_event(entry))
        if handler is not None:
            handler(self, entry)
        return entry

    def _start(self, entry: Entry) -> None:
        self.attempt = _or(_count(entry, "attempt"), self.attempt)
        self.steps = _or(_count(entry, "steps"), self.steps)
        self.step = _or(_count(entry, "step"), self.step)
        if _text(entry, "resumed_from") is None:  # it begins anew, with losses of its own
            self.first_validation = self.last_validation = None

    def _step(self, entry: Entry) -> None:
        self.step = _or(_count(entry, "step"), self.step)
        self.loss = _or(_number(entry, "loss"), self.loss)
        self.tokens_per_s = _or(_number(entry, "tokens_per_s"), self.tokens_per_s)
        self.step_s = _or(_number(entry, "step_s"), self.step_s)

    def _skipped(self, entry: Entry) -> None:
        self.step = _or(_count(entry, "step"), self.step)

    def _validation(self, entry: Entry) -> None:
        self.last_validation = _validation_of(entry)
        self.first_validation = self.first_validation or self.last_validation

    def _sample(self, entry: Entry) -> None:
        self.sample = _or(_text(entry, "text"), self.sample)


_EVENTS = {
    "start": Progress._start,
    "step": Progress._step,
    "skipped": Progress._skipped,
    "validation": Progress._validation,
    "sample": Progress._sample,
}


def read_progress(lines: Iterable[bytes | str]) -> Progress:
    progress = Progress()
    for line in lines:
        progress.feed(line)
    return progress


def is_step(entry: Entry) -> bool:
    """Whether a metrics line is one of a step, which has no event."""
    return _event(entry) == "step"


def describe_entry(entry: Entry) -> str | None:
    """One line for a person about one metrics line; None for one that says nothing new."""
    words = _WORDS.get(_event(entry), _no_words)(entry)
    return None if words is None else printable(words)


def _no_words(_entry: Entry) -> None:
    return None


def _step_words(entry: Entry) -> str:
    parts = [
        _at(entry),
        _shown("loss {:.4f}", _number(entry, "loss")),
        _shown("lr {:.2e}", _number(entry, "lr")),
        _shown("grad norm {:.2f}", _number(entry, "grad_norm")),
        _shown("{:,.0f} tokens/s", _number(entry, "tokens_per_s")),
    ]
    return "  ".join(part for part in parts if part)


def _start_words(entry: Entry) -> str:
    resumed = _text(entry, "resumed_from")
    parts = [
        _shown("{} ranks", _count(entry, "world_size"))
        + _shown(" on {} node(s)", _count(entry, "num_nodes")),
        _shown("{:,} parameters", _count(entry, "parameters")),
        _shown("{} steps", _count(entry, "steps")),
        f"resumed from {resumed}" if resumed else "from the start",
    ]
    return f"attempt {_or(_count(entry, 'attempt'), '?')}: " + ", ".join(p for p in parts if p)


def _validation_words(entry: Entry) -> str:
    return f"{_at(entry)}  validation loss {_validation_of(entry)}"


def _checkpoint_words(entry: Entry) -> str:
    path = _or(_text(entry, "path"), "")
    return f"{_at(entry)}  checkpoint {path}{_shown(' in {:.2f} s', _number(entry, 'seconds'))}"


def _failed_words(entry: Entry) -> str:
    return f"{_at(entry)}  no checkpoint: {_or(_text(entry, 'reason'), '?')}"


def _broken_words(entry: Entry) -> str:
    path, reason = _or(_text(entry, "path"), ""), _or(_text(entry, "reason"), "")
    return f"{_at(entry)}  passed over a broken checkpoint, {path}: {reason}"


def _skipped_words(entry: Entry) -> str:
    total = _shown(", {} in all", _count(entry, "total"))
    return f"{_at(entry)}  step left out: its gradient was no number{total}"


def _changed_words(entry: Entry) -> str:
    given = entry.get("changes")
    changes = given if isinstance(given, list) else []
    words = [_change_words(change) for change in changes if isinstance(change, dict)]
    since = _or(_text(entry, "resumed_from"), "the checkpoint")
    return f"{_at(entry)}  changed since {since}: {'; '.join(words)}"


def _change_words(change: Entry) -> str:
    key = _or(_text(change, "key"), "?")
    return f"{key} was {_short(change.get('old'))} and is {_short(change.get('new'))}"


def _network_words(entry: Entry) -> str | None:
    """What goes against the promises; what agrees with them, where there are some."""
    faults, transports = entry.get("faults"), entry.get("transports")
    if entry.get("agrees") is False and isinstance(faults, list):
        said = "; ".join(fault for fault in faults[:MOST_FAULTS] if isinstance(fault, str))
        more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        return f"{_at(entry)}  the network is not used as promised: {said}{more}"
    if entry.get("agrees") is True and entry.get("promised") and isinstance(transports, dict):
        return f"{_at(entry)}  the network is used as promised: {', '.join(transports)}"
    return None


def _short(value: Any) -> str:
    try:
        return quoted(json.dumps(value))[1:-1]
    except RecursionError:
        return "..."


_WORDS: dict[str, Callable[[Entry], str | None]] = {
    "step": _step_words,
    "start": _start_words,
    "validation": _validation_words,
    "checkpoint": _checkpoint_words,
    "checkpoint_failed": _failed_words,
    "broken": _broken_words,
    "skipped": _skipped_words,
    "changed": _changed_words,
    "network": _network_words,
}


def summary(progress: Progress) -> list[str]:
    """Lines for the end of a run: validation loss before and after, and the sample."""
    lines = []
    first, last = progress.first_validation, progress.last_validation
    if first is not None and last is not None and first.step != last.step:
        lines.append(f"validation loss before  {first}")
        lines.append(f"validation loss after   {last}")
    if progress.sample is not None:
        shown = progress.sample.splitlines()[:SAMPLE_LINES]
        lines += ["sample:", *("  | " + printable(line) for line in shown)]
    return lines


def _event(entry: Entry) -> str:
    event = entry.get("event", "step")
    return event if isinstance(event, str) else ""


def _at(entry: Entry) -> str:
    return f"step {_or(_count(entry, 'step'), '?'):>6}"


def _validation_of(entry: Entry) -> Validation:
    per_byte = _number(entry, "loss_per_byte")
    return Validation(_count(entry, "step"), _number(entry, "loss"), per_byte)


def _or(value: Any, other: Any) -> Any:
    """The value, or the other one where it is None."""
    return other if value is None else value


def _shown(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _count(entry: Entry, key: str) -> int | None:
    """A whole number from 0; None for anything else, as for true and for one of 65 bits."""
    value = entry.get(key)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _number(entry: Entry, key: str) -> float | None:
    """A number, which may be no finite one: the loss of a run that diverged."""
    value = entry.get(key)
    if type(value) is float or (type(value) is int and abs(value) <= MAX_COUNT):
        return float(value)
    return None


def _text(entry: Entry, key: str) -> str | None:
    value = entry.get(key)
    return value if isinstance(value, str) else None
