"""How node.py counts starts and time where nobody else does."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import wait_until
from trainer import node

CODES = st.sampled_from([0, 1, 75, 78, 79, None])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)


def arguments(run_dir: str | Path, **changes: object) -> argparse.Namespace:
    given = {"failures": 3, "requeues": 5, "deadline_s": 0.0, "node_rank": 0, "host": "h"}
    given |= {"repeat_codes_from": 128, "submission": ""} | changes
    return argparse.Namespace(run_dir=str(run_dir), **given)


def add_attempt(run_dir: str, number: int, code: object, submission: str = "") -> None:
    folder = Path(run_dir, "attempts", str(number))
    folder.mkdir(parents=True)
    (folder / "owner.json").write_text(json.dumps({"submission": submission}))
    if code is not None:
        (folder / "end.json").write_text(json.dumps({"code": code}))


@given(st.lists(CODES, max_size=12), st.integers(0, 12), st.integers(0, 4), st.integers(0, 4))
def test_attempts_since_the_run_was_given_up_count(
    codes: list[int | None], given_up_after: int, failures: int, requeues: int
) -> None:
    with tempfile.TemporaryDirectory() as run_dir:
        for number, code in enumerate(codes, start=1):
            add_attempt(run_dir, number, code)
        node.write_json(Path(run_dir, node.GIVEN_UP_FILE), {"attempt": given_up_after})
        why = node.spent(arguments(run_dir, failures=failures, requeues=requeues))
    since = codes[given_up_after:]
    failed = sum(code in (1, 79, None) for code in since)
    if failed > failures:
        assert why == f"failure {failed}, and attempts.failures is {failures}"
    elif since.count(75) > requeues:
        assert why == f"requeue {since.count(75)}, and attempts.requeues is {requeues}"
    else:
        assert why == ""


@given(st.dictionaries(st.sampled_from(["attempt", "code", "count", "after"]), JSON))
def test_what_others_have_written_into_these_files_does_no_harm(content: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as run_dir:
        add_attempt(run_dir, 1, content.get("code"))
        missed = Path(run_dir, node.MISSED_DIR, "node-0.json")
        missed.parent.mkdir()
        for path in (Path(run_dir, node.GIVEN_UP_FILE), missed):
            path.write_text(json.dumps(content))
        args = arguments(run_dir)
        assert node.spent(args) == ""
        node.missed_too_often(args, "reason")
        assert json.loads(missed.read_text())["reason"] == "reason"
        assert node.code_without_head(args) >= 0


@pytest.mark.parametrize(("age_s", "is_over"), [(3500.0, False), (3700.0, True)])
def test_the_deadline_counts_from_the_first_attempt(
    tmp_path: Path, age_s: float, is_over: bool
) -> None:
    for number in (1, 2):
        add_attempt(str(tmp_path), number, 75)
    first = tmp_path / "attempts/1/owner.json"
    then = first.stat().st_mtime - age_s
    os.utime(first, (then, then))
    assert bool(node.spent(arguments(tmp_path, deadline_s=3600.0))) == is_over
    node.give_up(arguments(tmp_path), "submitted again after that")
    assert node.spent(arguments(tmp_path, deadline_s=3600.0)) == ""


@given(st.lists(st.tuples(st.sampled_from("ab"), CODES), max_size=8), st.integers(0, 8))
def test_attempts_of_this_submission_count_and_no_others(
    begun: list[tuple[str, int | None]], given_up_after: int
) -> None:
    begun.sort(key=lambda one: one[0])
    with tempfile.TemporaryDirectory() as run_dir:
        for number, (submission, code) in enumerate(begun, start=1):
            add_attempt(run_dir, number, code, submission)
        # An automatic start must not get the budgets of a new submission.
        node.write_json(Path(run_dir, node.GIVEN_UP_FILE), {"attempt": given_up_after})
        own = [code for submission, code in begun if submission == "b"]
        failed = sum(code in (1, 79, None) for code in own)
        args = arguments(run_dir, failures=failed, requeues=99, submission="b")
        assert node.spent(args) == ""
        args.failures -= 1
        assert node.spent(args) == f"failure {failed}, and attempts.failures is {failed - 1}"
        args.submission, args.failures = "c", 0
        assert node.spent(args) == ""


@pytest.mark.parametrize(("age_s", "is_over"), [(0.0, False), (3700.0, True)])
def test_an_attempt_that_could_not_say_who_it_is_began_with_its_folder(
    tmp_path: Path, age_s: float, is_over: bool
) -> None:
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    then = folder.stat().st_mtime - age_s
    os.utime(folder, (then, then))
    assert bool(node.spent(arguments(tmp_path, deadline_s=3600.0))) == is_over


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (node.Leave(0, "finished"), 0),
        (node.Leave(78, "no such folder"), 78),
        (node.Leave(75, "SIGTERM"), 203),
        (node.Leave(1, "node 1 is missing"), 129),
        (node.Leave(1, "node 0 has said so", decided=True), 1),
        (node.Leave(203, "node 0 has said so", decided=True), 203),
    ],
)
def test_a_node_that_has_begun_no_attempt_leaves(
    tmp_path: Path, leave: node.Leave, code: int
) -> None:
    assert node.without_attempt(arguments(tmp_path), leave).code == code
    kept = node.without_attempt(argparse.Namespace(repeat_codes_from=0), leave)
    assert (kept.code, kept.reason) == (leave.code, leave.reason)


@pytest.mark.parametrize(
    ("limit_s", "shutdown_s", "after_s"),
    [(3600, 300, 3270), (600, 300, 300), (60, 300, 30), (0, 300, float("inf"))],
)
def test_when_a_stop_begins_before_the_time_limit(
    limit_s: float, shutdown_s: float, after_s: float
) -> None:
    signals = node.Signals.__new__(node.Signals)  # its handlers are those of the whole process
    signals.drain_after_s = float("inf")
    signals.limit(limit_s, shutdown_s)
    assert signals.drain_after_s == after_s


def test_the_time_limit_in_a_roll_call_is_a_missed_start_and_a_signal_is_not() -> None:
    signals = node.Signals.__new__(node.Signals)
    signals.signal, signals.began = "", 0.0
    signals.limit(1, 1)
    with pytest.raises(node.Leave, match="the time limit of 1 s before the attempt") as late:
        signals.check()
    signals.signal = "SIGTERM"
    with pytest.raises(node.Leave, match="SIGTERM before the attempt") as asked:
        signals.check()
    assert (late.value.code, asked.value.code) == (1, 75)


def test_who_has_waited_long_for_an_attempt_starts_anew_with_the_others(tmp_path: Path) -> None:
    add_attempt(str(tmp_path), 1, None)
    alive, end = tmp_path / "attempts/1/alive", tmp_path / "attempts/1/end.json"
    others = node.OtherLife(arguments(tmp_path, start_timeout_s=0.0, time_limit_s=60.0))
    assert not others.goes_on()
    end.write_text("{}")
    others.check()  # that one had ended before this node came
    end.unlink()
    alive.touch()
    assert others.goes_on()
    assert not others.goes_on()
    others.check()
    end.write_text("{}")
    others.args.start_timeout_s = 60.0
    others.check()  # it waited no longer than any node may
    others.args.start_timeout_s = 0.0
    with pytest.raises(node.Leave, match="starts anew, too") as leave:
        others.check()
    assert leave.value.code == 75
    others.args.time_limit_s = 0.0
    others.check()


def test_the_exit_code_of_the_own_child_is_left_to_who_waits_for_it() -> None:
    children = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", f"raise SystemExit({code})"])
        for code in (3, 4)
    ]
    for child, code in zip(children, (3, 4), strict=True):
        wait_until(lambda: node.ended_with(child.pid) == code, "it has ended")  # noqa: B023
    node.reap_orphans(keep=children[0].pid)
    assert node.ended_with(children[0].pid) == 3
    assert children[0].wait() == 3
    node.reap_orphans(keep=children[0].pid)
    assert node.ended_with(children[1].pid) is None
    children[1].wait()
