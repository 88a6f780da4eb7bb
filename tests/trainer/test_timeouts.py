"""Each time limit of the trainer fires once: it says where, who and which key, ends the attempt
within seconds, and the next attempt goes on. `make timeouts` writes docs/timeouts-measured.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sleeping import ENDING_S, SLEEPS
from timeouts_page import Measured, write_rows

from runs import Run

# The rest is for `make timeouts`: they take the same way.
OFTEN = ("rendezvous", "load", "evaluation", "checkpoint")
CASES = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.faults) for name in SLEEPS]


@pytest.fixture(scope="module")
def measured(root: Path, update_golden: bool) -> Iterator[dict[str, Measured]]:
    rows: dict[str, Measured] = {}
    yield rows
    if update_golden:
        write_rows(root, rows)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CASES)
def test_a_limit_fires(name: str, tmp_path: Path, measured: dict[str, Measured]) -> None:
    run, sleep = Run(tmp_path), SLEEPS[name]
    lasted_s = sleep.fire(run)
    (error,) = run.errors()
    first_line = error["message"].splitlines()[0]
    assert (error["kind"], error["rank"]) == ("hang", sleep.rank)
    assert f"({sleep.names}): rank {sleep.rank} ({error['host']}) is missing from" in first_line
    assert f"it is in phase {sleep.phase} at " in first_line
    assert lasted_s < sleep.limit_s + ENDING_S
    before = run.checkpoints()
    assert run.finish(sleep.config(short=False), attempt=2) == "done"
    assert run.events("start")[-1]["resumed_from"] == (before[-1] if before else None)
    assert sorted(run.losses()) == [1, 2, 3, 4, 5, 6]
    measured[name] = Measured(sleep.names, sleep.limit_s, lasted_s, 79, first_line)
