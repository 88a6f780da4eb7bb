"""The page of traffic has its jobs, and what the planner says of each today; runs nothing."""

from __future__ import annotations

from pathlib import Path

import traffic_page as page


def test_the_page_has_a_row_for_each_job_with_its_forecast(root: Path) -> None:
    lines = (root / page.PATH).read_text("utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("|")][2:]
    told = [[cell.strip("| ") for cell in row] for row in rows]
    expected = [[*page.names(case), page.words(page.predicted(case))] for case in page.CASES]
    assert [row[:6] for row in told] == expected
    assert {row[7] for row in told} <= {"0.0%", "0.1%", "0.2%", "0.3%", "0.4%", "0.5%"}
