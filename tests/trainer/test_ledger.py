"""The ledger of real runs: no second of an attempt is missing, and none is there twice."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.goodput import BOOKED, Goodput, read_goodput
from runs import Run, configuration
from trainer import ledger
from trainer.contract import Contract
from trainer.ledger import Ledger, process_age_s
from trainer.metrics import Clock

RANKS = 2
KILLED_AT, SAVED_AT, LAST = 9, 5, 12
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def at_every_report(_run: Run, name: str, step: int) -> None:
    ledger.UNBOOKED_SHARE = 0.0


def kill(run: Run, name: str, step: int) -> None:
    at_every_report(run, name, step)
    if (name, step, os.environ["RANK"]) == ("step", KILLED_AT, "0"):
        os.kill(os.getpid(), signal.SIGKILL)


def config() -> dict[str, Any]:
    return configuration(
        num_ranks=RANKS, steps=LAST, checkpoint__every_steps=SAVED_AT, logging__every=2,
    )  # fmt: skip


def lines_of(run: Run) -> list[dict[str, Any]]:
    text = (run.run_dir / "goodput.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, float, float]:
    """A run that was killed and went on, and when it began and ended."""
    run = Run(tmp_path_factory.mktemp("killed"))
    began = time.time()
    run.start(config(), 1, kill)
    run.finish(config(), 2, at_every_report)
    return run, began, time.time()


def goodput_of(run: Run) -> Goodput:
    goodput = read_goodput((run.run_dir / "goodput.jsonl").read_bytes().splitlines())
    assert goodput is not None
    return goodput


def test_the_kinds_of_each_line_add_up_to_its_time(resumed: tuple[Run, float, float]) -> None:
    for line in lines_of(resumed[0]):
        assert set(line["seconds"]) <= set(BOOKED)
        assert sum(line["seconds"].values()) == pytest.approx(line["to"] - line["from"], abs=1e-4)


def test_an_attempt_has_no_gap_from_the_start_of_its_process(
    resumed: tuple[Run, float, float],
) -> None:
    run, began, ended = resumed
    lines = lines_of(run)
    for before, after in pairwise(lines):
        if before["attempt"] == after["attempt"]:
            assert after["from"] == before["to"]
    assert [line["attempt"] for line in lines] == sorted(line["attempt"] for line in lines)
    assert lines[0]["from"] >= began - 2 * TICK_S
    assert lines[-1]["to"] <= ended


def test_all_of_the_time_is_in_the_sums(resumed: tuple[Run, float, float]) -> None:
    lines, goodput = lines_of(resumed[0]), goodput_of(resumed[0])
    assert goodput.num_attempts == 2
    assert goodput.wall_s == pytest.approx(lines[-1]["to"] - lines[0]["from"], abs=1e-3)
    for kind in ("compute", "data", "initialisation", "restore", "save", "evaluation", "recovery"):
        assert goodput.seconds[kind] > 0, kind


def test_the_steps_made_again_are_counted(resumed: tuple[Run, float, float]) -> None:
    run, goodput = resumed[0], goodput_of(resumed[0])
    assert run.events("start")[1]["resumed_from"] == f"step-{SAVED_AT:09d}-attempt-00001"
    assert goodput.steps_repeated == KILLED_AT - 1 - SAVED_AT
    again = [line for line in lines_of(run) if line["attempt"] == 1]
    spent = [line["seconds"] for line in again if (line["last_step"] or 0) > SAVED_AT]
    lost_s = sum(part["compute"] + part["data"] for part in spent)
    assert goodput.seconds["repeated"] == pytest.approx(lost_s)


def test_each_attempt_has_its_steps_once(resumed: tuple[Run, float, float]) -> None:
    for attempt, first in ((1, 1), (2, SAVED_AT + 1)):
        steps = [
            step
            for line in lines_of(resumed[0])
            if line["attempt"] == attempt and line["last_step"] is not None
            for step in range(line["first_step"], line["last_step"] + 1)
        ]
        last = KILLED_AT - 1 if attempt == 1 else LAST
        assert steps == list(range(first, last + 1))


def test_only_the_last_line_of_a_whole_run_has_an_outcome(
    resumed: tuple[Run, float, float],
) -> None:
    *others, last = lines_of(resumed[0])
    assert last["outcome"] == "done"
    assert not any("outcome" in line for line in others)


def contract(run_dir: Path, rank: int = 0) -> Contract:
    return Contract(rank, rank, 2, 1, run_dir, run_dir / "checkpoints", run_dir)


def test_short_intervals_wait_for_a_hundredth_of_the_time_or_a_save(tmp_path: Path) -> None:
    books, clock = Ledger(contract(tmp_path), 10, 0.0), Clock()
    age_s = process_age_s()  # a little more than what is booked
    for step, share in ((11, 0.001), (12, 0.001), (13, 0.02), (14, 0.001)):
        clock.totals["compute"] += age_s * share
        books.book(step, clock)
    books.book(14, clock, at_once=True)
    books.book(14, clock, at_once=True)  # nothing has happened since
    lines = (tmp_path / "goodput.jsonl").read_text().splitlines()
    steps = [(line["first_step"], line["last_step"]) for line in map(json.loads, lines)]
    assert steps == [(None, None), (11, 13), (14, 14)]
    books.close(14, clock)


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    books, clock = Ledger(contract(tmp_path, rank=1), 0, 0.0), Clock()
    books.book(1, clock, at_once=True)
    books.close(1, clock)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_books_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "goodput.jsonl").symlink_to("/dev/full")
    books, clock = Ledger(contract(tmp_path), 0, 0.0), Clock()
    books.close(1, clock)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "goodput.jsonl is not written any more" in said[0]
    assert "No space left" in said[0]
