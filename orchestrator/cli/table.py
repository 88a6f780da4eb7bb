"""States of runs as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.backends.base import Status
from orchestrator.errors import printable


def status_table(statuses: Sequence[Status]) -> str:
    """Columns padded to their widest cell; no trailing spaces; of a reason its first line."""
    cells = [("RUN", "STATE", "ATTEMPT", "STEP", "REASON"), *(_row(status) for status in statuses)]
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
