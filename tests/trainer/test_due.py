"""Checkpoints by time: when they are due, and that all ranks make them after the same steps."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import Run, configuration
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.due import FIRST_S, LEAST_S, Due
from trainer.saver import manifest_of
from trainer.state import Progress

CONFIG = parse_config(configuration(), "test")
RANKS = 4
STEPS = 30


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def due_by(watch: Watch, **by: float | None) -> Due:
    settings: dict[str, Any] = {"every_steps": None, "every_s": None, "mtbf_s": None, **by}
    return Due(replace(CONFIG.checkpoint, **settings), clock=watch)


def test_seconds_count_from_the_end_of_the_last_checkpoint() -> None:
    watch = Watch()
    due = due_by(watch, every_s=60)
    seen = []
    for second in range(1, 151):
        watch.now_s += 1
        if due.now():
            seen.append(second)
            watch.now_s += 20
            due.saved(cost_s=20)
    assert seen == [60, 120]


def test_any_checkpoint_starts_the_clock_anew() -> None:
    watch = Watch()
    due = due_by(watch, every_s=60)
    watch.now_s += 59
    due.saved(cost_s=0)
    watch.now_s += 59
    assert not due.now()
    watch.now_s += 1
    assert due.now()


def test_under_steps_no_time_is_due() -> None:
    watch = Watch()
    due = due_by(watch, every_steps=5)
    watch.now_s += 1e9
    assert not due.now()


def test_the_best_interval_follows_from_the_cost() -> None:
    due = due_by(Watch(), mtbf_s=86_400)
    assert due.interval_s() == FIRST_S
    due.saved(cost_s=30)
    assert due.interval_s() == pytest.approx(math.sqrt(2 * 30 * 86_400))
    for _ in range(10):
        due.saved(cost_s=120)
    assert due.interval_s() == pytest.approx(math.sqrt(2 * 120 * 86_400))


@given(st.floats(0, 1e6), st.floats(1e-3, 1e9))
def test_the_best_interval_has_bounds(cost_s: float, mtbf_s: float) -> None:
    due = due_by(Watch(), mtbf_s=mtbf_s)
    assert due.interval_s() <= mtbf_s
    due.saved(cost_s)
    assert min(LEAST_S, mtbf_s) <= due.interval_s() <= mtbf_s


@pytest.mark.parametrize(
    ("every_steps", "last_step", "validated", "measured"),
    [(None, 10, 10, False), (None, 10, 11, True), (None, 0, 0, False),
     (10, 18, 11, True), (10, 18, 10, False)],
)  # fmt: skip
def test_a_validation_speaks_for_the_first_checkpoint_after_it(
    every_steps: int | None, last_step: int, validated: int, measured: bool
) -> None:
    config = replace(CONFIG, checkpoint=replace(CONFIG.checkpoint, every_steps=every_steps))
    contract = Contract(0, 0, 1, 1, Path("/r"), Path("/r/c"), Path("/w"))
    progress = Progress(step=20, validated_step=validated, validation_loss=2.0)
    manifest = manifest_of(progress, last_step, config, contract, "full")
    assert manifest.validation_step == (validated if measured else None)


def by_time(**changes: Any) -> dict[str, Any]:
    return configuration(
        num_ranks=RANKS, steps=STEPS, model__dropout=0.1, model__width=64, checkpoint__keep=1000,
        **changes,
    )  # fmt: skip


def note_saves(run: Run, name: str, step: int) -> None:
    """Each rank notes when it saves; rank 2 is slower than the others."""
    if name == "step" and os.environ["RANK"] == "2":
        time.sleep(0.003)  # slower, so that the ranks' clocks disagree on the step
    if name == "save":
        with (run.root / f"saves-{os.environ['RANK']}").open("a") as file:
            file.write(f"{step}\n")


def kill_after_a_save(run: Run, name: str, step: int) -> None:
    if name == "step" and step > STEPS // 2 and run.checkpoints() and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    note_saves(run, name, step)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("straight"))
    assert run.finish(by_time()) == "done"
    return run


@pytest.mark.parametrize("by", ["every_s", "mtbf_s"])
def test_all_ranks_save_after_the_same_steps_and_go_on_from_there(
    straight: Run, tmp_path: Path, by: str
) -> None:
    run = Run(tmp_path)
    config = by_time(checkpoint__every_steps=None, **{f"checkpoint__{by}": 0.01})
    ended = run.start(config, listener=kill_after_a_save)
    assert ended[1].exit_code == -signal.SIGKILL
    assert len(run.checkpoints()) > 1
    assert run.finish(config, attempt=2, listener=note_saves) == "done"
    saved = [(run.root / f"saves-{rank}").read_text().split() for rank in range(RANKS)]
    steps = {int(name.split("-")[1]) for name in run.checkpoints()}
    assert [{int(step) for step in rank} for rank in saved] == [steps] * RANKS
    assert run.losses() == straight.losses()
    assert run.digest() == straight.digest()
