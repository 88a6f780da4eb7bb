"""Times of attempts and steps from ledgers of any length, and goodput as `status` has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.backends import runstore
from orchestrator.backends.base import Handle
from orchestrator.cli import history
from orchestrator.goodput import intervals
from orchestrator.profiles import find_profiles
from orchestrator.report.curves import clock
from orchestrator.report.files import Run
from orchestrator.report.times import Times
from orchestrator.report.told import Told
from running import standing_run

Cli = Callable[..., tuple[int, str, str]]


def line(attempt: int, begin: float, end: float, first: int, last: int) -> str:
    steps = {"first_step": first, "last_step": last, "seconds": {"compute": end - begin}}
    return json.dumps({"attempt": attempt, "from": begin, "to": end, **steps}) + "\n"


def test_steps_that_were_made_again_ended_when_they_did_so_last() -> None:
    lines = [line(1, 0, 10, 1, 10), line(1, 12, 20, 11, 14), line(2, 30, 36, 8, 10)]
    times = Times.read(intervals(lines))
    assert times.spans == {1: (0, 20), 2: (30, 36)}
    at = clock(Run("one", Told(), times=times))
    assert at is not None
    assert [at(step) for step in (1, 4, 7, 8, 9, 10)] == [1, 4, pytest.approx(7), 32, 34, 36]


def test_a_ledger_of_any_length_counts_to_its_end(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = standing_run(tmp_path, "one") / "goodput.jsonl"
    ledger.write_text("".join(line(1 + n // 10, n, n + 1, 1 + n, 1 + n) for n in range(60)))
    whole = cli("status", "one")[1], cli("report", "one", "--out", "-")[1]
    assert "of 1 min 0 s" in whole[0]
    assert "of 1 min 0 s" in whole[1]
    monkeypatch.setattr(runstore, "READ_LIMIT_BYTES", 500)
    assert (cli("status", "one")[1], cli("report", "one", "--out", "-")[1]) == whole


def test_attempts_that_are_left_out_are_counted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_ATTEMPTS", 3)
    folder = standing_run(tmp_path, "one") / "attempts"
    for number in range(1, 6):
        (folder / str(number)).mkdir(parents=True)
    page = cli("report", "one", "--out", "-")[1]
    assert "<dt>Attempts</dt><dd>5</dd>" in page
    assert "2 older attempts are left out" in page


@pytest.mark.parametrize(
    ("record", "files", "is_cancelled"),
    [
        ({"state": "CANCELLED"}, {}, True),
        ({"state": "FAILED"}, {}, False),
        ({"state": "RUNNING"}, {"cancel": ""}, False),
        (None, {"cancel": "17\n", "receipt.json": '{"ids": {"job": "17"}}'}, True),
        (None, {"cancel": "17\n", "receipt.json": '{"ids": {"job": "18"}}'}, False),
    ],
)
def test_a_run_is_cancelled_when_status_says_so(
    tmp_path: Path, record: object, files: dict[str, str], is_cancelled: bool
) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "1" / "end.json").write_text('{"code": 75, "reason": "drained"}')
    if record is not None:
        (tmp_path / "supervisor.json").write_text(json.dumps(record))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    store = runstore.LocalRunStore(tmp_path)
    profile = find_profiles(None, {}, tmp_path).choose("local")
    run = history.read_run(Handle("local", "one", tmp_path), store, profile, store)
    assert run.state.startswith("cancelled") == is_cancelled
