"""kill -9 of a rank anywhere costs at most one interval and changes no number: `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import Account, Straight, digest, disturb, straight
from kills_page import PATH, page
from plan import CELLS, KEEP, SHORT, STRATEGIES, WHOLE, Case
from runs import Run
from trainer import phase
from traps import PLACES

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
# The rendezvous is the end of the start.
PHASES = set(phase.PHASES) - {"rendezvous"}
EVERYWHERE = {*PHASES, *PLACES}


@pytest.fixture(scope="module")
def accounts() -> dict[Case, list[Account]]:
    """Filled by the tests of all cases, in their order."""
    return {}


def test_fifty_kills_are_everywhere() -> None:
    for strategy in STRATEGIES:
        cases = [case for case in WHOLE if case.cell.strategy == strategy]
        assert {kill.place for case in cases for kill in case.kills} == EVERYWHERE
    assert sum(len(case.kills) for case in WHOLE) == 50
    assert {case.cell for case in WHOLE} == set(CELLS)


@pytest.mark.short
def test_the_short_part_is_in_every_phase_and_cell() -> None:
    places = {kill.place for case in SHORT for kill in case.kills}
    assert places >= {*PHASES, "collective"}
    assert {case.cell for case in SHORT} == set(CELLS)


def check(case: Case, run: Run, expected: Straight) -> list[Account]:
    accounts = disturb(run, case.config(), case.kills)
    assert run.losses() == expected.losses
    assert digest(run) == expected.digest
    assert len(run.checkpoints()) <= KEEP + 1  # and the best
    if run.checkpoints()[-1].endswith(f"-{len(case.kills) + 1:05d}"):
        assert not [path for path in run.checkpoint_dir.iterdir() if path.name.startswith(".")]
    return accounts


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_whole(
    case: Case,
    tmp_path: Path,
    accounts: dict[Case, list[Account]],
) -> None:
    accounts[case] = check(case, Run(tmp_path), straight(case.cell.strategy))


@pytest.mark.short
@pytest.mark.parametrize("case", SHORT, ids=str)
def test_short(case: Case, tmp_path: Path) -> None:
    check(case, Run(tmp_path), straight(case.cell.strategy))


def test_the_page_is_written(
    accounts: dict[Case, list[Account]], root: Path, update_golden: bool
) -> None:
    if not update_golden:
        pytest.skip("the page is written with --update-golden")
    assert list(accounts) == WHOLE
    file = root / PATH
    file.write_text(page(file.read_text("utf-8"), accounts), "utf-8")
