"""What is told of the time that a stop takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import Run, configuration
from trainer.contract import Contract
from trainer.grace import Grace
from trainer.metrics import Metrics


def contract_in(folder: Path, rank: int = 0) -> Contract:
    return Contract(rank, rank, 2, 1, folder, folder / "checkpoints", folder)


@contextlib.contextmanager
def grace_in(folder: Path, limit_s: float, rank: int = 0) -> Iterator[Grace]:
    contract = contract_in(folder, rank)
    with contextlib.closing(Metrics(contract, False, 0)) as metrics:
        yield Grace(contract, limit_s, metrics)


def told(folder: Path) -> float:
    content = json.loads((folder / "grace.json").read_text())
    assert content["version"] == 1
    return float(content["seconds"])


def test_it_is_twice_the_slowest_recent_checkpoint_and_two_steps(tmp_path: Path) -> None:
    with grace_in(tmp_path, 1000) as grace:
        found = []
        for save_s in (10.0, 4.0, 4.0, 4.0, 4.0, 4.0):
            grace.saved(1, save_s, step_s=0.5)
            found.append(told(tmp_path))
    assert found == [21.0] * 5 + [9.0]


def test_what_differs_by_a_tenth_is_not_written_again(tmp_path: Path) -> None:
    with grace_in(tmp_path, 1000) as grace:
        grace.saved(1, 10, step_s=0)
        (tmp_path / "grace.json").unlink()
        grace.saved(2, 10.9, step_s=0)
        assert not (tmp_path / "grace.json").exists()
        grace.saved(3, 11.1, step_s=0)
        assert told(tmp_path) == 22.2


def test_a_later_attempt_knows_what_was_told(tmp_path: Path) -> None:
    with grace_in(tmp_path, 1000) as grace:
        grace.saved(1, 10, step_s=0)
    before = (tmp_path / "grace.json").stat().st_mtime_ns
    with grace_in(tmp_path, 1000) as grace:
        grace.saved(2, 10.5, step_s=0)
    assert (tmp_path / "grace.json").stat().st_mtime_ns == before


@pytest.mark.case("T20")
def test_a_limit_that_is_too_short_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with grace_in(tmp_path, 30) as grace:
        grace.saved(5, 14, step_s=0.2)
        grace.saved(10, 21, step_s=0.2)
        grace.saved(15, 40, step_s=0.2)
    output = capsys.readouterr()
    assert "timeouts.shutdown is 30 s" in output.err
    assert "set it to 43s or more" in output.err
    assert output.err.count("\n") == 1
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert (event["event"], event["step"]) == ("slow_save", 10)
    assert (event["seconds"], event["limit"]) == (42.4, 30)


def test_other_ranks_tell_nothing(tmp_path: Path) -> None:
    with grace_in(tmp_path, 1, rank=1) as grace:
        grace.saved(1, 10, step_s=0)
    assert list(tmp_path.iterdir()) == []


def test_no_space_for_it_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with grace_in(tmp_path, 1000) as grace:
        (tmp_path / "grace.json").mkdir()
        grace.saved(1, 10, step_s=0)
    assert "time to stop not told" in capsys.readouterr().err


def test_a_run_tells_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish(configuration(steps=2, shutdown_timeout_s=1e-9))
    assert told(run.run_dir) > 0
    assert len(run.events("slow_save")) == 1
