"""The rows of a bench as a Markdown table and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from orchestrator.bench.book import Row
from orchestrator.bench.measured import COMPARED, Figures, error_percent

# How figures are shown: divided by, with a unit and so many digits behind the point.
SHOWN = {
    "peak_bytes": (2**20, "MiB", 0),
    "step_s": (1e-3, "ms", 1),
    "tokens_per_s": (1, "", 0),
    "inside_bytes": (1e6, "MB", 2),
    "between_bytes": (1e6, "MB", 2),
}
HEAD = ("strategy", "nodes", "micro", *COMPARED.values(), "ended")


def markdown(rows: Sequence[Row]) -> str:
    """Return a row for each cell: what was measured, and in brackets how far the plan is from it;
    for a cell that did not end well, why."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    cell = row.cell
    layers = f", {cell.layers} layers" if cell.layers is not None else ""
    ended = f"{row.state}: {row.reason}" if row.reason else row.state
    figures = [_figure(row.measured, row.planned, name) for name in COMPARED]
    ended = ended.replace("|", "\\|")
    return [cell.strategy + layers, str(cell.nodes), str(cell.micro), *figures, ended]


def _figure(measured: Figures, planned: Figures, name: str) -> str:
    value, error = getattr(measured, name), error_percent(planned, measured, name)
    if value is None:
        return "-"
    size, unit, digits = SHOWN[name]
    words = f"{value / size:.{digits}f} {unit}".rstrip()
    return words if error is None else f"{words} ({error:+.0f} %)"


def csv_text(rows: Sequence[Row]) -> str:
    """Return all figures in bytes and seconds; empty where one is not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("measured", "planned", "error_percent")
    head = ["strategy", "nodes", "micro", "layers", "run", "state", "reason"]
    writer.writerow(head + [f"{kind}_{name}" for name in COMPARED for kind in kinds])
    for row in rows:
        cell = row.cell
        start = [cell.strategy, cell.nodes, cell.micro, cell.layers]
        writer.writerow([*start, row.run, row.state, row.reason, *_values(row)])
    return out.getvalue()


def _values(row: Row) -> list[object]:
    found: list[object] = []
    for name in COMPARED:
        error = error_percent(row.planned, row.measured, name)
        shown = None if error is None else round(error, 2)
        found += [getattr(row.measured, name), getattr(row.planned, name), shown]
    return found
