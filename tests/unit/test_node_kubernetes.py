"""node.py where nobody else counts its starts, as on Kubernetes: codes and budgets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import MakePods, attempts, pods_in, waits

from running import Nodes, read, wait_until


@pytest.fixture
def make_pods(tmp_path: Path) -> Iterator[MakePods]:
    with pods_in(tmp_path) as make:
        yield make


def missed(nodes: Nodes, node: int) -> object:
    return read(nodes.run_dir / "missed-starts" / f"node-{node}.json")["count"]


def past_attempt(nodes: Nodes, number: int, code: int | None, age_s: float = 0.0) -> None:
    """An attempt that ended with a code, or with nothing said."""
    folder = nodes.run_dir / "attempts" / str(number)
    folder.mkdir(parents=True)
    (folder / "owner.json").write_text("{}")
    then = time.time() - age_s
    os.utime(folder / "owner.json", (then, then))
    if code is not None:
        (folder / "end.json").write_text(json.dumps({"version": 1, "code": code}))


# --- codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "code"),
    [("done", 0), ("silent", 129), ("crash", 129), ("configuration", 78), ("hang", 207)],
)
def test_a_code_of_128_and_more_asks_for_a_new_start(
    make_pods: MakePods, mode: str, code: int
) -> None:
    nodes = make_pods(mode)
    nodes.start(0, 1)
    assert nodes.codes() == {0: code, 1: code}, nodes.all_logs()
    # What the attempt came to is told as everywhere else.
    assert read(nodes.run_dir / "attempts/1/end.json")["code"] == (
        code if code < 128 else code - 128
    )


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_that_is_evicted_makes_all_leave_with_a_checkpoint(
    make_pods: MakePods, node: int
) -> None:
    nodes = make_pods("wait")
    nodes.start(0, 1)
    nodes.wait_ready()
    nodes.started[node].terminate()
    assert nodes.codes() == {0: 203, 1: 203}, nodes.all_logs()
    assert read(nodes.run_dir / "attempts/1/outcome.json")["outcome"] == "drained"


def test_a_finished_run_and_a_stop_before_the_start(make_pods: MakePods) -> None:
    nodes = make_pods("done", failures=0, requeues=0)
    nodes.start(1)
    wait_until(lambda: waits(nodes, 1), "it waits")
    nodes.started[1].terminate()
    assert nodes.started[1].wait(timeout=60) == 203
    assert not (nodes.run_dir / "missed-starts").exists()
    (nodes.run_dir / "DONE").touch()
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}


# --- budgets -----------------------------------------------------------------------------------


def test_failures_end_when_they_are_used_up_and_count_anew_after_that(make_pods: MakePods) -> None:
    nodes = make_pods("crash")
    codes = []
    for _ in range(3):
        nodes.start(0, 1)
        codes.append(set(nodes.codes().values()))
    assert codes == [{129}, {1}, {129}], nodes.all_logs()
    given_up = read(nodes.run_dir / "given-up.json")
    assert (given_up["attempt"], given_up["reason"]) == (2, "failure 2, and attempts.failures is 1")
    for node in (0, 1):
        assert "not started again: failure 2" in nodes.log(node).read_text()


def test_only_another_submission_gets_all_budgets_again(make_pods: MakePods) -> None:
    nodes = make_pods("crash", failures=0, submission="uid-1")
    codes = []
    for submission in ("uid-1", "uid-1", "uid-1", "uid-2"):
        nodes.also = (*nodes.also, "--submission", submission)
        nodes.start(0, 1)
        codes.append(set(nodes.codes().values()))
    assert codes == [{1}, {1}, {1}, {1}]
    assert attempts(nodes) == ["1", "2"]
    owners = [read(nodes.run_dir / "attempts" / n / "owner.json") for n in attempts(nodes)]
    assert [owner["submission"] for owner in owners] == ["uid-1", "uid-2"]


def test_requeues_have_a_budget_of_their_own(make_pods: MakePods) -> None:
    nodes = make_pods("wait", nnodes=1, failures=0)
    for attempt, code in ((1, 203), (2, 1)):
        nodes.start(0)
        nodes.wait_ready(attempt)
        nodes.started[0].terminate()
        assert nodes.codes() == {0: code}, nodes.all_logs()
    assert "not started again: requeue 2, and attempts.requeues is 1" in nodes.log(0).read_text()


@pytest.mark.parametrize(
    ("code", "age_s", "words"),
    [
        (None, 0.0, "no new attempt: failure 2, and attempts.failures is 1"),
        (75, 7200.0, "no new attempt: the first attempt began 72"),
    ],
)
def test_what_an_attempt_could_not_say_ends_the_next_start(
    make_pods: MakePods, code: int | None, age_s: float, words: str
) -> None:
    nodes = make_pods("done", failures=1, requeues=9, deadline_s=3600)
    for number in (1, 2):
        past_attempt(nodes, number, code, age_s)
    nodes.start(0, 1)
    assert nodes.codes() == {0: 1, 1: 1}
    assert all(words in nodes.log(node).read_text() for node in (0, 1))
    assert attempts(nodes) == ["1", "2"]
    nodes.start(0, 1)  # submitted again
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()


def test_a_deadline_that_passes_in_an_attempt_ends_the_run(make_pods: MakePods) -> None:
    nodes = make_pods("crash", failures=100, deadline_s=3600)
    past_attempt(nodes, 1, 1, age_s=3601)
    (nodes.run_dir / "given-up.json").write_text('{"version": 1, "attempt": "?"}')
    nodes.also = tuple("7200" if text == "3600" else text for text in nodes.also)
    nodes.start(0, 1)
    assert nodes.codes() == {0: 129, 1: 129}, nodes.all_logs()
    nodes.also = tuple("0.001" if text == "7200" else text for text in nodes.also)
    (nodes.run_dir / "given-up.json").write_text('{"version": 1, "attempt": 2}')
    nodes.start(0, 1)
    assert nodes.codes() == {0: 1, 1: 1}
    assert read(nodes.run_dir / "attempts/3/end.json")["code"] == 1
    assert "attempts.deadline is over" in nodes.log(1).read_text()


def test_the_time_limit_is_kept_by_a_checkpoint_before_it(make_pods: MakePods) -> None:
    nodes = make_pods("wait", nnodes=1, time_limit_s=12)
    nodes.start(0)
    assert nodes.codes() == {0: 203}, nodes.all_logs()
    end = read(nodes.run_dir / "attempts/1/end.json")
    assert (end["code"], end["reason"]) == (75, "drained by the time limit of 12 s")


# --- roll calls that fail ----------------------------------------------------------------------


@pytest.mark.parametrize(("here", "words"), [(0, "node 1 of 2 did not report"), (1, "no go from")])
def test_starts_that_come_to_no_attempt_are_counted(
    make_pods: MakePods, here: int, words: str
) -> None:
    nodes = make_pods("done")
    codes: list[int] = []
    for _ in range(3):
        nodes.start(here, start_timeout_s=1)
        codes += nodes.codes().values()
    assert codes == [129, 1, 129]
    text = nodes.log(here).read_text()
    assert words in text
    assert "not started again: missed start 2, and attempts.failures is 1" in text
    assert missed(nodes, here) == 1


def test_missed_starts_of_a_submission_are_not_forgotten(make_pods: MakePods) -> None:
    nodes = make_pods("done", failures=0)
    for submission, words in (
        ("uid-1", "not started again: missed start 1"),
        ("uid-1", "no new attempt: missed start 1, and attempts.failures is 0"),
        ("uid-2", "not started again: missed start 1"),
    ):
        nodes.also = (*nodes.also, "--submission", submission)
        nodes.start(0, start_timeout_s=1)
        assert nodes.codes() == {0: 1}
        assert words in nodes.log(0).read_text().splitlines()[-1]
    nodes.also = (*nodes.also, "--submission", "uid-3")
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()


def test_a_missed_start_is_the_same_for_all_and_forgotten_after_an_attempt(
    make_pods: MakePods,
) -> None:
    nodes = make_pods("crash", nnodes=3, failures=1)
    nodes.start(0, 1, start_timeout_s=3)
    assert nodes.codes() == {0: 129, 1: 129}, nodes.all_logs()
    nodes.start(0, 1, 2)
    assert set(nodes.codes().values()) == {129}, nodes.all_logs()
    del nodes.started[2]
    nodes.start(0, 1, start_timeout_s=3)
    assert nodes.codes() == {0: 129, 1: 129}
    assert missed(nodes, 0) == 1


def test_what_cannot_be_counted_is_not_repeated(make_pods: MakePods) -> None:
    nodes = make_pods("done", nnodes=1)
    (nodes.run_dir / "attempts").touch()
    nodes.start(0)
    assert nodes.codes() == {0: 1}
    assert "not started again: this start cannot be counted: " in nodes.log(0).read_text()
