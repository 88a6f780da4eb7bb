"""A damaged checkpoint is never taken, whatever is damaged, and the end is equal all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from damage import every_kind, files_of
from harness import digest, newest_whole, step_of, straight
from plan import STEPS, Cell, Kill
from runs import Run
from traps import Trap, published

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
OFTEN = 2  # steps between checkpoints, so that there is one for each kind of damage


@pytest.mark.parametrize("cell", [Cell("ddp"), Cell("hybrid_shard", "sharded")], ids=str)
def test_all_that_are_damaged_are_passed_over(cell: Cell, tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = cell.config(checkpoint__every_steps=OFTEN, checkpoint__keep=STEPS)
    run.start(config, listener=Trap(Kill("exit", STEPS, 0), 1))
    damaged = damage_newest(run)
    whole = [path.name for path in published(run) if path.name not in damaged]
    assert run.finish(config, attempt=2) == "done"
    assert [event["path"] for event in run.events("broken")] == damaged
    assert run.events("start")[-1]["resumed_from"] == whole[-1]
    expected = straight(cell.strategy)
    assert run.losses() == expected.losses
    assert digest(run) == expected.digest


def damage_newest(run: Run) -> list[str]:
    """Hurt the newest checkpoints, each in another way; returns their names, newest first."""
    oldest, *others = published(run)
    ways = every_kind(files_of(oldest))
    assert len(ways) <= len(others)  # the oldest stays whole
    hurt = list(reversed(others))[: len(ways)]
    for path, damage in zip(hurt, ways.values(), strict=True):
        damage(path, oldest)
    return [path.name for path in hurt]


@pytest.mark.short
@pytest.mark.parametrize("cell", [Cell("ddp"), Cell("hybrid_shard", "sharded")], ids=str)
def test_with_nothing_whole_left_the_run_begins_anew(cell: Cell, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(cell.config(), listener=Trap(Kill("step", 7, 1), 1))
    (only,) = published(run)
    (only / files_of(only)[0]).unlink()
    assert run.finish(cell.config(), attempt=2) == "done"
    assert run.events("start")[-1]["resumed_from"] is None
    assert digest(run) == straight(cell.strategy).digest


def test_a_folder_that_was_removed_does_not_exist(tmp_path: Path) -> None:
    run, config = Run(tmp_path), Cell("ddp").config()
    run.start(config, listener=Trap(Kill("step", 12, 1), 1))
    shutil.rmtree(published(run)[-1])
    assert step_of(newest_whole(run) or "") == 5
    assert run.finish(config, attempt=2) == "done"
    assert run.losses() == straight("ddp").losses
    assert digest(run) == straight("ddp").digest
