"""`plan --plot`: memory and traffic as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.drawing import draw

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.grid import Cell
    from orchestrator.estimate.hardware import Hardware

SPANS = {"inside": "inside a node", "between": "between nodes"}


def plot(cells: Sequence[Cell], hardware: Hardware, file: Path) -> None:
    """Draw the plans of all cells: memory by what it is for, with a line for the card's, and what
    a rank sends inside and between nodes. Raises UserError where that is not possible (see draw).
    """
    drawn = [(_label(cell), cell.estimate) for cell in cells if cell.estimate is not None]

    def fill(figure: Any) -> None:
        above, below = figure.subplots(2, 1)
        _memory(above, drawn, hardware)
        _traffic(below, drawn)

    draw(file, len(drawn), fill)


def _label(cell: Cell) -> str:
    names = [name for name, value in cell.values.items() if value is not None]
    values = [str(cell.values[name]).lower() for name in names]
    return ", ".join(
        value if name == "strategy" else f"{name} {value}"
        for name, value in zip(names, values, strict=True)
    )


Bars = Sequence[tuple[str, "Estimate"]]


def _memory(axes: Any, drawn: Bars, hardware: Hardware) -> None:
    names = drawn[0][1].memory.lines
    _stacked(axes, drawn, list(names), lambda one, name: one.memory.lines[name] / 2**30)
    if hardware.memory_bytes is not None:
        size = hardware.memory_bytes / 2**30
        label = f"{hardware.card or 'the card'}: {size:.3g} GiB"
        axes.axhline(size, color="black", linestyle="--", label=label)
    axes.set_ylabel("GiB of the fullest rank")
    axes.set_title("Memory at the peak of a step")
    _legend(axes)


def _traffic(axes: Any, drawn: Bars) -> None:
    _stacked(axes, drawn, list(SPANS), lambda one, span: one.traffic.sent_bytes(span) / 1e9, SPANS)
    axes.set_ylabel("GB sent by a rank in a step")
    axes.set_title("Communication")
    _legend(axes)


def _legend(axes: Any) -> None:
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def _stacked(
    axes: Any,
    drawn: Bars,
    names: Sequence[str],
    value: Callable[[Estimate, str], float],
    words: dict[str, str] | None = None,
) -> None:
    places = range(len(drawn))
    bottom = [0.0] * len(drawn)
    for name in names:
        heights = [value(one, name) for _, one in drawn]
        if any(heights):
            axes.bar(places, heights, bottom=bottom, label=(words or {}).get(name, name))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    labels = [label for label, _ in drawn]
    axes.set_xticks(list(places), labels, fontsize="small", rotation=30, ha="right")
