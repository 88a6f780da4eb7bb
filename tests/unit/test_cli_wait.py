"""`orchestrate wait` on runs of the local backend that stand in a folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli_runs import MAIN, make_run, record

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A folder with the runs `good` and `other`, which are done, and `bad`, which is not."""
    for name, state, reason in (
        ("good", "DONE", "done"), ("other", "DONE", ""), ("bad", "FAILED", "rank 1: boom\nmore"),
    ):  # fmt: skip
        record(make_run(tmp_path, name), state, reason)
    return tmp_path


@pytest.mark.usefixtures("ended")
def test_runs_that_are_all_done(cli: Cli) -> None:
    code, out, err = cli("wait", "good", "other", "runs/good")
    assert (code, err) == (0, "")
    assert out == "good: DONE, attempt 1 (done)\nother: DONE, attempt 1\n"


@pytest.mark.usefixtures("ended")
def test_one_that_is_not_done(cli: Cli) -> None:
    code, out, _ = cli("wait", "good", "bad", "--timeout", "2h")
    assert code == 1
    assert out.splitlines()[1] == "bad: FAILED, attempt 1 (rank 1: boom)"


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("good", "nope"), "no run 'nope'"),
        (("good", "--timeout", "90"), "write 90s, 90m or 90h"),
        ((), "Missing argument 'RUN...'"),
    ],
)
def test_mistakes_are_named(cli: Cli, argv: tuple[str, ...], words: str) -> None:
    code, out, err = cli("wait", *argv)
    assert (code, out) == (2, "")
    assert words in err


def test_the_end_of_the_time_names_what_goes_on(cli: Cli, ended: Path) -> None:
    record(make_run(ended, "going"), "RUNNING")
    code, out, err = cli("wait", "good", "going", "--timeout", "1s")
    assert code == 1
    assert err == "after 1 s still not at an end: going (RUNNING)\n"
    assert out.splitlines() == ["good: DONE, attempt 1 (done)", "going: RUNNING, attempt 1"]


def waiting(folder: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, once it has seen that the run is running."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, "wait", "going"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "going: RUNNING, attempt 1\n"
    return process


def test_each_change_is_a_line(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "going")
    record(run_dir, "RUNNING")
    process = waiting(tmp_path)
    record(run_dir, "DONE", "done")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "going: DONE, attempt 1 (done)\n")


def test_ctrl_c_stops_nothing(tmp_path: Path) -> None:
    record(make_run(tmp_path, "going"), "RUNNING")
    process = waiting(tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (
        130,
        "Nothing was stopped. Wait again with the same command.",
    )
