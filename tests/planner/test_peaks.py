"""The planner's peaks against those that torch's memory tracker sees."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

import forecast_page
from forecasts import Forecast
from grid import GRID, SHORT
from orchestrator.spec.presets import ModelSizes
from tracking import tracked_peaks


@pytest.mark.planner
def test_peaks_of_each_way_to_spread_a_model() -> None:
    _check([forecast_page.error(c, p) for c, p in zip(SHORT, tracked_peaks(SHORT), strict=True)])


@pytest.mark.planner
@pytest.mark.timeout(600)
def test_peaks_of_a_vocabulary_that_is_most_of_the_model() -> None:
    sizes = ModelSizes(layers=2, heads=2, width=64, context=16)
    cases = [Forecast("full_shard", sizes, 32768, tied=tied) for tied in (True, False)]
    cases.append(Forecast("ddp", sizes, 32768))
    _check([forecast_page.error(c, p) for c, p in zip(cases, tracked_peaks(cases), strict=True)])


@pytest.mark.planner
@pytest.mark.timeout(1200)
def test_peaks_of_the_grid(root: Path, update_golden: bool) -> None:
    if not update_golden:
        pytest.skip("all of the grid takes minutes, and goes with make plan-proof")
    peaks = tracked_peaks(GRID)
    _check([forecast_page.error(case, peak) for case, peak in zip(GRID, peaks, strict=True)])
    (root / forecast_page.PATH).write_text(forecast_page.text(GRID, peaks), "utf-8")


def _check(errors: list[float]) -> None:
    assert max(abs(one) for one in errors) < forecast_page.MOST, errors
    assert median(abs(one) for one in errors) < forecast_page.MIDDLE, errors


def test_the_page_has_a_row_for_each_case_with_what_the_planner_says(root: Path) -> None:
    lines = (root / forecast_page.PATH).read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")][2:]
    assert [(row[:6], row[8]) for row in rows] == [
        (cells[:6], cells[6]) for cells in map(forecast_page.cells_of_row, GRID)
    ]
    assert all(abs(float(row[7].strip("%"))) < 100 * forecast_page.MOST for row in rows)
