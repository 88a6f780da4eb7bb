"""A bench's folder: bench.json, with what was asked and a row for each cell that has ended."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.bench.cells import Cell
from orchestrator.bench.measured import COMPARED, Figures, error_percent
from orchestrator.errors import UserError

FILE = "bench.json"
VERSION = 1
SAME = ("job", "name", "cluster")  # of what was asked: with another one it is another bench
DONE, REFUSED = "DONE", "REFUSED"


@dataclass(frozen=True)
class Row:
    """What became of a cell.

    Args:
        run: its run's name, under a sweep SWEEP/NUMBER.
        digest: of all that the run was started with; another one is another run.
        state: as backends say it (DONE, FAILED, CANCELLED, ...), or REFUSED where the job file does
            not allow it.
        reason: one line; "" where it is done.
    """

    cell: Cell
    run: str
    digest: str
    state: str
    reason: str = ""
    measured: Figures = field(default_factory=Figures)
    planned: Figures = field(default_factory=Figures)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        errors = {name: error_percent(self.planned, self.measured, name) for name in COMPARED}
        return {**asdict(self), "error_percent": errors}


def row_of(data: dict[str, Any]) -> Row:
    """Return a row from its plain data."""
    kept = {key: value for key, value in data.items() if key != "error_percent"}
    kept["cell"] = Cell(**kept["cell"])
    kept["measured"], kept["planned"] = Figures(**kept["measured"]), Figures(**kept["planned"])
    return Row(**kept)


@dataclass
class Book:
    """The rows of a bench, by cell, kept on disk.

    Args:
        asked: what the last call asked for, in words of the command line.
    """

    folder: Path
    asked: dict[str, Any]
    rows: dict[Cell, Row] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, asked: dict[str, Any]) -> Book:
        """Return the book of a folder, with the rows that are there.

        Raises UserError where its file is none of this version's, and where it is the bench of
        another job or cluster: cells are told apart by what they set alone.
        """
        path = folder / FILE
        try:
            data = json.loads(path.read_text("utf-8"))
            rows = [row_of(one) for one in data["rows"]]
            before = {key: data["asked"][key] for key in SAME}
        except FileNotFoundError:
            return cls(folder, asked)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{path}: is no bench of this version ({error}); give another folder with -o"
            ) from None
        for key, value in before.items():
            if value != asked[key]:
                raise UserError(
                    f"{path}: is the bench of another {key} ({value}; here: {asked[key]}); give "
                    "another folder with -o"
                )
        return cls(folder, asked, {row.cell: row for row in rows})

    def add(self, row: Row) -> None:
        """Keep a row, at once."""
        self.rows[row.cell] = row
        rows = [one.as_dict() for one in self.rows.values()]
        data = {"version": VERSION, "asked": self.asked, "rows": rows}
        self.write(FILE, f"{json.dumps(data, indent=1)}\n")

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder: a reader sees the old content or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        part = path.with_name(f".{name}.part")
        part.write_text(text, "utf-8")
        os.replace(part, path)

    def has(self, cell: Cell, digest: str, retry: bool) -> bool:
        """Whether a cell has ended as it is asked for now; with `retry` what failed has not."""
        row = self.rows.get(cell)
        if row is None or row.digest != digest:
            return False
        return row.state == DONE or not retry
