"""The table of docs/timeouts-measured.md that `make timeouts` writes: a row for each limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATH = "docs/timeouts-measured.md"
MARK = "<!-- What follows is written by `make timeouts`. -->\n"
COLUMNS = (
    "what sleeps or is missing in",
    "limit",
    "set to",
    "all gone after",
    "code",
    "what is said",
)
OTHERS = re.compile(r"/\S*/(?=[^/\s]+\.py:)")  # folders of the machine where it was measured
WIDTH = 230


@dataclass(frozen=True)
class Measured:
    """One limit that was exceeded. lasted_s: from the begin of the sleep until nothing was left."""

    key: str
    limit_s: float
    lasted_s: float
    code: int
    said: str

    def row(self, name: str) -> str:
        """Its line of the table."""
        said = OTHERS.sub(".../", self.said).replace("|", "\\|")
        short = said if len(said) <= WIDTH else f"{said[:WIDTH]}..."
        cells = (name, f"`{self.key}`", f"{self.limit_s:g} s", f"{self.lasted_s:.1f} s",
                 str(self.code), short)  # fmt: skip
        return f"| {' | '.join(cells)} |"


def write_rows(root: Path, rows: Mapping[str, Measured]) -> None:
    """Put these rows into the page; others that it has stay."""
    file = root / PATH
    text, mark, table = file.read_text("utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{PATH} lacks the line {MARK!r}")
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[3:]}
    lines |= {name: measured.row(name) for name, measured in rows.items()}
    head = [f"| {' | '.join(row)} |" for row in (COLUMNS, ["---"] * len(COLUMNS))]
    body = "\n".join(["", *head, *lines.values()])
    file.write_text(f"{text}{mark}{body}\n", "utf-8")
