"""Two attempts of one run live at once: only the newer one publishes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness import digest, nothing_left_running, straight
from plan import CELLS, EVERY, Cell
from running import wait_until
from runs import Run
from traps import GIVE_UP_S

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
# In the middle of publishing, and in a step, after which the older one trains on to its next save.
HELD = {"publish": 2 * EVERY, "step": EVERY + 2}


class Hold:
    """A listener that holds rank 0 at a phase until there is a file `release`."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __call__(self, run: Run, name: str, step: int) -> None:
        if os.environ["RANK"] == "0" and (name, step) == (self.phase, HELD[self.phase]):
            (run.root / "held").touch()
            wait_until((run.root / "release").exists, "the release", GIVE_UP_S)


@pytest.mark.parametrize("phase", HELD)
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=pytest.mark.short if i == 0 else ()) for i, cell in
             enumerate(CELLS)], ids=str,
)  # fmt: skip
def test_the_older_one_publishes_nothing(cell: Cell, phase: str, tmp_path: Path) -> None:
    run, config = Run(tmp_path), cell.config()
    run.claim(1)
    older, newer = run.fork(config, 1, Hold(phase)), run.fork(config, 2)
    with nothing_left_running():
        older.begin()
        wait_until((run.root / "held").exists, "the hold", GIVE_UP_S)
        run.claim(2)
        newer.begin()
        assert [end.value for end in newer.collect()] == [0] * config["num_ranks"]
        before = files_below(run)
        (run.root / "release").touch()
        assert [end.value for end in older.collect()] == [1] * config["num_ranks"]
    assert files_below(run) == before
    assert "Superseded: attempt 1 is superseded" in run.errors(1)[0]["message"]
    assert run.losses() == straight(cell.strategy).losses
    assert digest(run) == straight(cell.strategy).digest


def files_below(run: Run) -> dict[str, bytes]:
    """All files of all checkpoints, also unfinished ones."""
    return {
        str(path.relative_to(run.checkpoint_dir)): path.read_bytes()
        for path in run.checkpoint_dir.rglob("*")
        if path.is_file()
    }
