"""The charts of one run, and those of several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from orchestrator.report.axis import BYTES, NUMBERS, SECONDS
from orchestrator.report.chart import Chart, Form, Line, Mark, chart
from orchestrator.report.files import Run
from orchestrator.report.series import Between
from orchestrator.report.timeline import spans_of

LOSS = "nats per token"
MAX_MARKS = 100


def charts_of(run: Run) -> list[Chart]:
    """Loss, throughput, memory, and what the optimizer did; those for which there is a point."""
    told, marks = run.told, restarts(run)
    loss = [
        Line("training", told.curve("loss").points(), 0),
        Line("validation", told.curve("validation").points(), 1, dots=True),
    ]

    def single(name: str) -> list[Line]:
        return [Line(name.replace("_", " "), told.curve(name).points(), 0)]

    speed = Form("Throughput", "tokens/s", y_units=NUMBERS, from_zero=True, marks=marks)
    memory = Form("Memory of rank 0", "peak", y_units=BYTES, from_zero=True, marks=marks)
    made = [
        chart(Form("Loss", LOSS, marks=marks), loss),
        chart(speed, [Line("tokens/s", told.curve("tokens_per_s").points())]),
        chart(memory, [Line("peak", told.curve("peak_memory_bytes").points())]),
        chart(
            Form("Gradient norm", "before clipping", from_zero=True, marks=marks),
            single("grad_norm"),
        ),
        chart(Form("Learning rate", "", from_zero=True, marks=marks), single("lr")),
    ]
    return [one for one in made if one is not None]


def restarts(run: Run) -> list[Mark]:
    """Where later attempts went on."""
    first = min(run.told.starts, default=0)
    return [
        Mark(started.step, f"attempt {number} goes on after step {started.step:,}")
        for number, started in sorted(run.told.starts.items())
        if number > first and started.ranks is not None
    ][-MAX_MARKS:]


Place = Callable[[int], float]


def charts_together(runs: Sequence[Run]) -> list[Chart]:
    """Loss by step, by tokens and by time, and throughput, a line for each run."""
    clocks = [clock(run) for run in runs]
    tokens = [_tokens(run) for run in runs]
    speed = Form("Throughput", "tokens/s", y_units=NUMBERS, from_zero=True)
    by_tokens = Form("Training loss by tokens", LOSS, "tokens", NUMBERS)
    by_time = Form("Training loss by time", LOSS, "since the first start", SECONDS)
    made = [
        chart(Form("Training loss by step", LOSS), _lines(runs, "loss")),
        chart(Form("Validation loss by step", LOSS), _lines(runs, "validation", dots=True)),
        chart(by_tokens, _lines(runs, "loss", tokens)),
        chart(by_time, _lines(runs, "loss", clocks)),
        chart(speed, _lines(runs, "tokens_per_s")),
    ]
    return [one for one in made if one is not None]


def _lines(
    runs: Sequence[Run], name: str, places: Sequence[Place | None] | None = None, dots: bool = False
) -> list[Line]:
    """A curve of each run; by `places`, those alone whose places are known."""
    lines = []
    for number, run in enumerate(runs):
        place: Place | None = float if places is None else places[number]
        if place is not None:
            points = [(place(x), y) for x, y in run.told.curve(name).points()]
            lines.append(Line(run.name, points, number, dots))
    return lines


def _tokens(run: Run) -> Place | None:
    """Tokens of all ranks after a step."""
    per_step = run.tokens_per_step
    return None if per_step is None else lambda step: float(step * per_step)


def clock(run: Run) -> Place | None:
    """Seconds from the first start to the end of a step; None if no time is known.

    By the ledger, or by the events of the metrics where the program writes none.
    """
    spans = spans_of(run)
    if not spans:
        return None
    at = _by_ledger(run) or _by_events(run)
    start = min(begin for begin, _ in spans.values())
    return None if at is None else lambda step: max(0.0, at(step) - start)


def _by_ledger(run: Run) -> Place | None:
    """When a step ended: between the first and the last of the newest interval that holds it."""
    points = run.times.ends.points()
    return Between(points) if points else None


def _by_events(run: Run) -> Place | None:
    """On straight lines between the events, whose times may differ from host to host."""
    points = run.told.curve("time").points()
    highest = accumulate((time for _, time in points), max)
    at = Between([(step, time) for (step, _), time in zip(points, highest, strict=True)])
    return at if points else None
