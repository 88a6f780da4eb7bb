"""The page of the matrix has its cells, and what theory says of each; runs nothing."""

from __future__ import annotations

from pathlib import Path

import page
from cells import CELLS


def test_the_page_has_a_row_for_each_cell_with_what_theory_says(root: Path) -> None:
    lines = (root / page.PATH).read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")][2:]
    expected = [page.cells_of_row(cell) for cell in CELLS]
    assert [(row[:4], row[6:]) for row in rows] == expected
    assert all(0 <= float(value) < 1e-1 for row in rows for value in row[4:6])
