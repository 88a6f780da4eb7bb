"""Curves as the figures of an SVG: where each line, tick and word stands. The template draws it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.report.axis import PLAIN, Axis, Units, axis_of, words

# In units of the viewBox; the page scales the whole.
WIDTH, HEIGHT = 520.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 40.0
NUM_BANDS = 96  # that say their values when the pointer is over them
NUM_ROWS = 24  # of the table
MAX_DOTS = 60
XY = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve: its name, its points by rising x, and the number of its colour."""

    name: str
    points: Sequence[XY]
    colour: int = 0
    dots: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line, with what it stands for."""

    x: float
    name: str


@dataclass(frozen=True)
class Drawn:
    """A line as it is drawn: SVG's path, and points to be seen one by one."""

    name: str
    colour: int
    path: str
    dots: Sequence[XY]


@dataclass(frozen=True)
class Band:
    """A part of the plane, and the values in it in words."""

    x: float
    width: float
    title: str


@dataclass(frozen=True)
class Chart:
    """All that the template needs. rows: of the table, after its head."""

    title: str
    x_name: str
    y_name: str
    label: str
    x_axis: Axis
    y_axis: Axis
    lines: Sequence[Drawn]
    bands: Sequence[Band]
    marks: Sequence[tuple[float, str]]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        return round(LEFT + self.x_axis.share(value) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - self.y_axis.share(value) * (HEIGHT - TOP - BOTTOM), 1)


@dataclass(frozen=True)
class Form:
    """How a chart is to be: names and units of its axes, and whether y begins at zero."""

    title: str
    y_name: str
    x_name: str = "step"
    x_units: Units = PLAIN
    y_units: Units = PLAIN
    from_zero: bool = False
    marks: Sequence[Mark] = ()


def chart(form: Form, lines: Sequence[Line]) -> Chart | None:
    """The figures of a chart; None if no line has a point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_axis = axis_of(min(xs), max(xs), form.x_units, from_zero=True, tight=True)
    y_axis = axis_of(min(ys), max(ys), form.y_units, from_zero=form.from_zero)
    head, rows = _table(form, lines)
    made = Chart(
        form.title, form.x_name, form.y_name, _label(form, lines), x_axis, y_axis, (), (), (),
        head, rows,
    )  # fmt: skip
    drawn = [_drawn(made, line) for line in lines]
    marks = [(made.x(m.x), m.name) for m in form.marks if x_axis.low <= m.x <= x_axis.high]
    return replace(made, lines=drawn, bands=_bands(made, form, lines), marks=marks)


def _drawn(made: Chart, line: Line) -> Drawn:
    places = [(made.x(x), made.y(y)) for x, y in line.points]
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
    shows_dots = len(places) == 1 or (line.dots and len(places) <= MAX_DOTS)
    return Drawn(line.name, line.colour, path, places if shows_dots else ())


def _bands(made: Chart, form: Form, lines: Sequence[Line]) -> list[Band]:
    """Bands of equal width that hold a point, with the values of all lines in them."""
    width = (made.right - made.left) / NUM_BANDS
    held: dict[int, list[list[XY]]] = {}
    for number, line in enumerate(lines):
        for x, y in line.points:
            band = min(NUM_BANDS - 1, int((made.x(x) - made.left) / width))
            held.setdefault(band, [[] for _ in lines])[number].append((x, y))
    return [
        Band(round(made.left + band * width, 1), round(width, 2), _said(form, lines, held[band]))
        for band in sorted(held)
    ]


def _said(form: Form, lines: Sequence[Line], held: Sequence[Sequence[XY]]) -> str:
    """`step 12 to 20` and a line for each curve: its value, or the lowest and the highest."""
    xs = [x for points in held for x, _ in points]
    first, last = words(min(xs), form.x_units, 6), words(max(xs), form.x_units, 6)
    said = [f"{form.x_name} {first}" if first == last else f"{form.x_name} {first} to {last}"]
    for line, points in zip(lines, held, strict=True):
        ys = [y for _, y in points]
        if ys:
            low, high = words(min(ys), form.y_units), words(max(ys), form.y_units)
            said.append(f"{line.name}: {low}" + (f" to {high}" if low != high else ""))
    return "\n".join(said)


def _label(form: Form, lines: Sequence[Line]) -> str:
    """What a reader who does not see the chart is told."""
    said = []
    for line in lines:
        (x0, y0), (x1, y1) = line.points[0], line.points[-1]
        begin = f"{words(y0, form.y_units)} at {words(x0, form.x_units, 6)}"
        end = f"{words(y1, form.y_units)} at {words(x1, form.x_units, 6)}"
        said.append(f"{line.name} from {begin} to {end}")
    return f"{form.title}, {form.y_name} by {form.x_name}: {'; '.join(said)}"


def _table(form: Form, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Some points of each line as rows: x, and the values there or last before."""
    xs = sorted({x for line in lines for x, _ in line.points})
    chosen = sorted({round(k * (len(xs) - 1) / (NUM_ROWS - 1)) for k in range(NUM_ROWS)})
    rows = [[words(xs[k], form.x_units, 6)] for k in chosen]
    for line in lines:
        places = [x for x, _ in line.points]
        for row, k in zip(rows, chosen, strict=True):
            before = bisect_right(places, xs[k]) - 1
            row.append(words(line.points[before][1] if before >= 0 else None, form.y_units))
    return [form.x_name, *(line.name for line in lines)], rows
