"""`bench --plot`: what was measured and what was planned, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench.book import DONE, Row
from orchestrator.cli.drawing import draw

# Of a picture from top to bottom: figure, what one unit of the axis is, and its name.
PANELS = (
    ("peak_bytes", 2**20, "peak memory, MiB"),
    ("step_s", 1e-3, "step, ms"),
)
WIDTH = 0.4


def plot(rows: Sequence[Row], file: Path) -> None:
    """Draw the cells that ended well. Raises UserError where that is not possible (see draw)."""
    done = [row for row in rows if row.state == DONE]

    def fill(figure: Any) -> None:
        for axes, (name, size, words) in zip(figure.subplots(2, 1), PANELS, strict=True):
            _bars(axes, done, name, size)
            axes.set_ylabel(words)
            axes.legend(fontsize="small")

    draw(file, len(done), fill)


def _bars(axes: Any, rows: Sequence[Row], name: str, size: float) -> None:
    for shift, label in ((-WIDTH / 2, "measured"), (WIDTH / 2, "planned")):
        values = [(getattr(getattr(row, label), name) or 0) / size for row in rows]
        axes.bar([place + shift for place in range(len(rows))], values, WIDTH, label=label)
    labels = [row.cell.label for row in rows]
    axes.set_xticks(list(range(len(rows))), labels, fontsize="small", rotation=30, ha="right")
