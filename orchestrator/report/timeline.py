"""Attempts, restarts and checkpoints on a time line, and a bar of where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.goodput import KINDS, Goodput, words_of
from orchestrator.report.axis import SECONDS, Axis, axis_of
from orchestrator.report.files import Run

WIDTH, LEFT, RIGHT = 1080.0, 8.0, 8.0
THINNEST = 2.0  # of a bar, so that the shortest attempt is seen
MAX_MARKS = 400
WORDS = {
    "compute": "steps that counted",
    "data": "waiting for data",
    "initialisation": "start of processes, data, model",
    "restore": "finding and loading a checkpoint",
    "save": "waiting for a checkpoint",
    "evaluation": "evaluation",
    "repeated": "steps that were made again",
    "recovery": "from a failure to the next start",
    "waiting": "holding no machine",
}


@dataclass(frozen=True)
class Bar:
    """A part of a bar or a lane: where, its colour's name, and what it says."""

    x: float
    width: float
    kind: str
    title: str
    text: str = ""
    lane: int = 0


@dataclass(frozen=True)
class Share:
    """A kind of time: seconds in words, and its part of the whole."""

    kind: str
    meaning: str
    time: str
    share: str


@dataclass(frozen=True)
class Timeline:
    axis: Axis
    label: str
    attempts: Sequence[Bar]
    checkpoints: Sequence[Bar]

    def x(self, value: float) -> float:
        return _x(self.axis, value)


def timeline(run: Run) -> Timeline | None:
    """The time line of a run; None if no attempt's time is known."""
    spans = spans_of(run)
    if not spans:
        return None
    start = min(begin for begin, _ in spans.values())
    end = max(end for _, end in spans.values())
    axis = axis_of(0, end - start, SECONDS, from_zero=True, tight=True)
    results = {attempt.number: attempt.result for attempt in run.attempts}
    attempts = [
        _bar(axis, number, begin - start, end - start, results.get(number, "not ended"))
        for number, (begin, end) in sorted(spans.items())
    ]
    label = f"{len(spans)} attempts in {words_of(end - start)}: " + "; ".join(
        bar.title for bar in attempts[:20]
    )
    return Timeline(axis, label, attempts, _checkpoints(run, axis, start))


def spans_of(run: Run) -> dict[int, tuple[float, float]]:
    """From when to when each attempt was heard of, by the ledger and by events."""
    times: dict[int, list[float]] = {}
    for number, span in run.times.spans.items():
        times.setdefault(number, []).extend(span)
    for number, started in run.told.starts.items():
        known = [time for time in (started.first, started.last) if time is not None]
        if known:
            times.setdefault(number, []).extend(known)
    return {number: (min(known), max(known)) for number, known in times.items()}


def _bar(axis: Axis, number: int, begin: float, end: float, result: str) -> Bar:
    x, right = _x(axis, begin), _x(axis, end)
    title = f"attempt {number}: {result}, {words_of(end - begin)}"
    width = round(max(THINNEST, right - x), 1)
    fits = width > 14 + 7 * len(str(number))
    return Bar(x, width, css(result), title, str(number) if fits else "", number % 2)


def _checkpoints(run: Run, axis: Axis, start: float) -> list[Bar]:
    """The newest checkpoints, each a mark."""
    marks = []
    for saved in list(run.told.saved)[-MAX_MARKS:]:
        if saved.time is not None and start <= saved.time:
            title = f"checkpoint after step {saved.step:,}, attempt {saved.attempt}"
            marks.append(Bar(_x(axis, saved.time - start), THINNEST, "saved", title))
    return marks


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT), 1)


def css(result: str) -> str:
    """The class of a result's colour."""
    return result.replace(" ", "-")


def time_bar(goodput: Goodput) -> list[Bar]:
    """Where the time went, in one bar of all kinds."""
    total = sum(goodput.seconds.values())
    bars, x = [], LEFT
    for kind in KINDS:
        seconds = goodput.seconds[kind]
        width = seconds / total * (WIDTH - LEFT - RIGHT) if total > 0 else 0.0
        title = f"{kind}: {words_of(seconds)}, {100 * seconds / (total or 1):.1f} %"
        if width > 0:
            label = kind if width > 12 + 8 * len(kind) else ""
            bars.append(Bar(round(x, 1), round(width, 1), kind, title, label))
        x += width
    return bars


def shares(goodput: Goodput) -> list[Share]:
    """The same as rows, the longest first; kinds without any time are left out."""
    total = sum(goodput.seconds.values())
    kinds = sorted(KINDS, key=lambda kind: -goodput.seconds[kind])
    return [
        Share(
            kind,
            WORDS[kind],
            words_of(goodput.seconds[kind]),
            f"{100 * goodput.seconds[kind] / total:.1f} %",
        )
        for kind in kinds
        if goodput.seconds[kind] > 0
    ]
