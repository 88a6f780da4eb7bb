"""States of runs as a table of plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.errors import printable

if TYPE_CHECKING:
    from orchestrator.backends.base import Element, Status

VALUE_WIDTH = 24


def status_table(statuses: Sequence[Status]) -> str:
    """Columns padded to their widest cell; no trailing spaces; of a reason its first line."""
    return aligned(
        [("RUN", "STATE", "ATTEMPT", "STEP", "REASON"), *(_row(status) for status in statuses)]
    )


def sweep_table(elements: Sequence[Element]) -> str:
    """One row for each element: its number, its own values, how it stands, its losses."""
    keys = sorted({key for element in elements for key in element.values})
    head = ("ELEMENT", *_titles(keys), "STATE", "ATTEMPT", "STEP", "LOSS", "BEST VALIDATION")
    return aligned([head, *(_element_row(element, keys) for element in elements)])


def _titles(keys: Sequence[str]) -> list[str]:
    """The last parts of keys; whole keys where two have the same last part."""
    last = [key.rpartition(".")[2] for key in keys]
    counts = Counter(last)
    return [name if counts[name] == 1 else key for name, key in zip(last, keys, strict=True)]


def _element_row(element: Element, keys: Sequence[str]) -> tuple[str, ...]:
    _, state, attempt, step, _ = _row(element.status)
    own = [_short(element.values[key]) if key in element.values else "-" for key in keys]
    losses = [_loss(element.loss), _loss(element.best_validation_loss)]
    return (str(element.number), *own, state, attempt, step, *losses)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= VALUE_WIDTH else f"{text[: VALUE_WIDTH - 3]}..."


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, padded to the widest cell of each column; no trailing spaces."""
    rows = [[printable(cell) for cell in row] for row in cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(status: Status) -> tuple[str, str, str, str, str]:
    total = "?" if status.steps is None else status.steps
    step = "-" if status.step is None else f"{status.step}/{total}"
    reason = (status.reason.splitlines() or [""])[0]
    attempt = "-" if status.attempt is None else str(status.attempt)
    return (status.run, status.state.name, attempt, step, reason)
