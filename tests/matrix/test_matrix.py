"""Every strategy against one process, in numbers, memory and traffic: `make matrix`."""

from __future__ import annotations

from pathlib import Path

import pytest

import page
from cells import CELLS, NUM_RANKS, STRATEGIES, Cell
from measuring import Measured, alone, measure
from theory import buckets, collectives, held

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(1200)]

# In fp32 the order of sums is all that differs; in bf16 roundings fall otherwise.
BOUNDS = {"fp32": page.Row(1e-6, 1e-6), "bf16": page.Row(loss=1e-2, norm=1e-1)}


@pytest.fixture(scope="session")
def root_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module", params=STRATEGIES)
def measured(request: pytest.FixtureRequest, root_of_runs: Path) -> dict[Cell, Measured]:
    return measure(request.param, root_of_runs)


@pytest.fixture(scope="module")
def rows() -> dict[Cell, page.Row]:
    """Filled by the tests of all strategies, in their order."""
    return {}


def test_ddp_has_several_buckets() -> None:
    assert len(buckets()) >= 3


def test_losses_and_norms_are_those_of_one_process(
    measured: dict[Cell, Measured], root_of_runs: Path, rows: dict[Cell, page.Row]
) -> None:
    for cell, found in measured.items():
        whole = alone(root_of_runs)[cell.alone]
        rows[cell] = page.Row(
            page.difference(found.losses, whole.losses[: cell.steps]),
            page.difference(found.norms, whole.norms[: cell.steps]),
        )
    beyond = [f"{cell}: {rows[cell]}" for cell in measured if not _is_near(cell, rows[cell])]
    assert not beyond, "\n".join(beyond)


def _is_near(cell: Cell, row: page.Row) -> bool:
    bound = BOUNDS[cell.precision]
    return row.loss <= bound.loss and row.norm <= bound.norm


def test_each_rank_holds_what_theory_says(measured: dict[Cell, Measured]) -> None:
    for cell, found in measured.items():
        assert found.held == [held(cell, rank) for rank in range(NUM_RANKS)], cell


def test_each_rank_sends_what_theory_says(measured: dict[Cell, Measured]) -> None:
    for cell, found in measured.items():
        for rank in range(NUM_RANKS):
            first, last = found.collectives[rank]
            assert first == collectives(cell, rank), cell
            assert last == first, cell
        assert found.unseen == [0] * NUM_RANKS, cell


def test_the_page_is_written(rows: dict[Cell, page.Row], root: Path, update_golden: bool) -> None:
    if not update_golden:
        pytest.skip("the page is written with --update-golden")
    assert list(rows) == CELLS
    (root / page.PATH).write_text(page.text(rows), "utf-8")
