"""A disk that fails in the middle costs no whole checkpoint, and no number; nothing hangs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import FAULTS, WHOLE_RUN, Between, small_disk
from harness import digest, newest_whole, nothing_left_running, step_of, straight
from plan import CELLS, NUM_RANKS, Cell
from runs import Run

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts disks"),
]
BREAKS_AT, MENDED_AT = 12, 22  # steps done; there are saves after 10, 15, 20 and 25
SOME = [
    pytest.param(cell, fault, marks=pytest.mark.short if (n, fault) == (7, "full") else ())
    for n, cell in enumerate(CELLS)
    if cell.strategy == {"full": "ddp", "sharded": "hybrid_shard"}[cell.format]
    for fault in FAULTS
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@contextlib.contextmanager
def disk_for(folder: Path, fault: str) -> Iterator[None]:
    """A disk at `folder` for faults of disks; a folder can vanish without."""
    with contextlib.nullcontext() if fault == "vanished" else small_disk(folder):
        yield


@pytest.mark.parametrize(("cell", "fault"), SOME, ids=str)
def test_training_ends_with_a_clear_error(cell: Cell, fault: str, run: Run) -> None:
    broken, mended, words = FAULTS[fault]
    with disk_for(run.checkpoint_dir, fault):
        with nothing_left_running():
            ended = run.start(
                cell.config(), listener=Between(run.checkpoint_dir, {BREAKS_AT: broken})
            )
        assert [end.value for end in ended] == [1] * NUM_RANKS
        said = [error["message"] for error in run.errors()]
        assert len(said) == NUM_RANKS
        assert any(f"{run.checkpoint_dir}" in text and words in text for text in said), said
        mended(run.checkpoint_dir)
        check_goes_on(run, cell)


def check_goes_on(run: Run, cell: Cell) -> None:
    """The next attempt continues from before the fault, and all is as if it had not been."""
    newest = newest_whole(run)
    assert newest is not None
    assert step_of(newest) == 10
    assert [path for path in run.checkpoint_dir.iterdir() if path.name.startswith(".")] == []
    assert run.finish(cell.config(), attempt=2) == "done"
    assert run.events("start")[-1]["resumed_from"] == newest
    check_equal(run, cell)


def check_equal(run: Run, cell: Cell) -> None:
    assert run.losses() == straight(cell.strategy).losses
    assert digest(run) == straight(cell.strategy).digest


@pytest.mark.parametrize(("cell", "fault"), SOME, ids=str)
def test_training_goes_on_where_it_may(cell: Cell, fault: str, run: Run) -> None:
    broken, mended, words = FAULTS[fault]
    listener = Between(run.checkpoint_dir, {BREAKS_AT: broken, MENDED_AT: mended})
    config = cell.config(checkpoint__on_failure="continue", checkpoint__keep=9)
    with disk_for(run.checkpoint_dir, fault):
        assert run.finish(config, listener=listener) == "done"
        failed = run.events("checkpoint_failed")
        assert [event["step"] for event in failed] == [15, 20]
        assert all(words in event["reason"] for event in failed)
        assert [step_of(name) for name in run.checkpoints()] == [5, 10, 25, 30]
        newest_whole(run)
        check_equal(run, cell)


@pytest.mark.parametrize("fault", WHOLE_RUN)
def test_the_disk_of_the_whole_run(fault: str, tmp_path: Path) -> None:
    """Where not even the error can be put on record, all ranks end nevertheless."""
    broken, mended = WHOLE_RUN[fault]
    cell = Cell("ddp")
    with small_disk(tmp_path / "disk") as disk:
        run = Run(disk)
        with nothing_left_running():
            ended = run.start(cell.config(), listener=Between(disk, {BREAKS_AT: broken}))
        assert [end.value for end in ended] == [1] * NUM_RANKS
        mended(disk)
        check_goes_on(run, cell)
