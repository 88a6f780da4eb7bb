"""States of runs as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.backends.base import Status


def status_table(statuses: Sequence[Status]) -> str:
    """Columns padded to their widest cell; no trailing spaces."""
    rows = [("RUN", "STATE", "ATTEMPT", "STEP", "REASON"), *(_row(status) for status in statuses)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(status: Status) -> tuple[str, str, str, str, str]:
    step = "-" if status.step is None else f"{status.step}/{status.steps}"
    attempt = "-" if status.attempt is None else str(status.attempt)
    return (status.run, status.state.name, attempt, step, status.reason)
