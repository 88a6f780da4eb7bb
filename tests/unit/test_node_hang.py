"""node.py and attempts that hang: what it adds to the ranks' reports, and the end with 79."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import Nodes, read, wait_for_end, wait_until
from trainer import node
from trainer.node import Pulses, Result, decide, place_in, why_hanging


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "run").mkdir()
    made = Nodes(tmp_path / "run", tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("direct", [False, True])
def test_ranks_that_hang_are_ended_with_79_on_all_nodes(nodes: Nodes, direct: bool) -> None:
    nodes.mode, nodes.direct = "hang", direct
    if direct:
        nodes.nproc = 1
    nodes.start(0, 1)
    nodes.wait_ready()
    tree = nodes.tree()
    assert nodes.codes() == {0: 79, 1: 79}, nodes.all_logs()
    wait_for_end(tree)
    attempt = nodes.run_dir / "attempts/1"
    end = read(attempt / "end.json")
    assert (end["code"], end["rank"], end["detail"]) == (79, 1, "rank 1 sleeps")
    assert end["reason"].endswith("): no progress")
    ranks = range(nodes.nnodes * nodes.nproc)
    seen = [read(attempt / f"hangs/rank-{rank:05}.process.json") for rank in ranks]
    assert all(process["state"][0] in "SR" for process in seen)  # they look for files
    assert all("state " in process["below"][0] for process in seen)


def result(number: int, kind: str, at: float) -> Result:
    return Result(number, f"host{number}", 1, kind, number, f"why {number}", at=at)


def test_a_hang_is_graver_than_a_failure_and_no_configuration_error() -> None:
    failure, hang = result(0, "failure", at=1.0), result(1, "hang", at=2.0)
    assert (decide([failure, hang], "")["code"], decide([failure, hang], "")["rank"]) == (79, 1)
    assert decide([failure, hang, result(2, "configuration", at=3.0)], "")["code"] == 78


def test_a_mark_alone_makes_a_hang_of_a_failure() -> None:
    end = decide([result(0, "failure", at=1.0)], "", hang="no progress\nrank 0 sleeps")
    assert (end["code"], end["reason"], end["detail"]) == (79, "no progress", "rank 0 sleeps")
    assert decide([Result(0, "host", 0)], "done", hang="no progress")["code"] == 0


def test_without_a_verdict_the_mark_says_who_noticed(tmp_path: Path) -> None:
    assert why_hanging(tmp_path) == ""
    node.mark_as_hanging(tmp_path, "node3", 7, 60.0)
    assert why_hanging(tmp_path).startswith("rank 7 on node3 made no progress; see ")
    (tmp_path / "hangs").mkdir()
    node.write_json(tmp_path / "hangs/verdict.json", {"message": "rank 2 is missing"})
    assert why_hanging(tmp_path) == "rank 2 is missing"
    (tmp_path / "hang").write_text("")  # a full disk leaves it empty
    (tmp_path / "hangs/verdict.json").unlink()
    assert why_hanging(tmp_path).startswith("rank None")


# A process with a sheet, that beats at each line it is sent.
BEATING = """
import sys
from trainer.stacks import Sheet
sheet = Sheet()
print("ready", flush=True)
for line in sys.stdin:
    sheet.beat(float(line))
    print("beat", flush=True)
"""


@pytest.fixture
def beating() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", BEATING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def beat(process: subprocess.Popen[str], limit_s: float) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{limit_s}\n")
    process.stdin.flush()
    assert answer(process) == "beat"


def test_a_silent_watchdog_is_noticed_after_its_limit(beating: subprocess.Popen[str]) -> None:
    pulses, now, ranks = Pulses(), 0.0, {4: beating.pid}
    assert answer(beating) == "ready"

    def looks_until_noticed(most: int) -> int | None:
        nonlocal now
        for look in range(most):
            now += node.PULSE_S
            if pulses.silent(now, ranks):
                return look
        return None

    assert looks_until_noticed(1000) is None  # it has not begun to watch
    limit_s = 60.0
    beat(beating, limit_s)
    assert looks_until_noticed(12) is None
    beat(beating, limit_s)
    noticed = looks_until_noticed(1000)
    assert noticed is not None
    assert noticed * node.PULSE_S > limit_s + node.SILENCE_S
    assert pulses.silent(now, ranks) is None  # it looks only once in PULSE_S


def test_time_in_which_nobody_looked_does_not_count(beating: subprocess.Popen[str]) -> None:
    pulses = Pulses()
    assert answer(beating) == "ready"
    beat(beating, 60.0)
    assert pulses.silent(0.0, {0: beating.pid}) is None
    assert pulses.silent(1e6, {0: beating.pid}) is None


def test_a_stopped_process_tells_its_stacks(beating: subprocess.Popen[str], tmp_path: Path) -> None:
    assert answer(beating) == "ready"
    os.kill(beating.pid, signal.SIGSTOP)
    wait_until(lambda: node.look_at(beating.pid)["state"][0] == "T", "stopped")
    hang = node.Hang(tmp_path, "node1", {3: beating.pid})
    wait_until(lambda: "line" in node.sheet_of(beating.pid), "stacks")
    hang.write()
    place = read(tmp_path / "hangs/rank-00003.process.json")
    assert place["state"] == "T (stopped)"
    assert place["at"].endswith("in <module>")
    assert "most recent call first" in (tmp_path / "hangs/rank-00003.stacks.txt").read_text()
    rank, words = hang.fault() or (None, "")
    assert rank == 3
    assert "state T (stopped)" in words


def test_a_process_without_a_handler_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        hang = node.Hang(tmp_path, "node1", {0: process.pid})
        hang.write()
        assert process.poll() is None
        process.kill()
    assert read(tmp_path / "hangs/rank-00000.process.json")["at"] == ""


def test_what_has_ended_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait(timeout=60)
    hang = node.Hang(tmp_path, "node1", {0: process.pid})
    hang.write()
    assert read(tmp_path / "hangs/rank-00000.process.json")["state"] == "? (gone)"


def test_the_place_is_the_main_threads_outside_of_libraries(tmp_path: Path) -> None:
    asleep, written = threading.Event(), tmp_path / "stacks"
    thread = threading.Thread(target=asleep.wait)
    thread.start()
    with written.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    asleep.set()
    thread.join()
    assert written.read_text().count("most recent call first") > 1
    assert place_in(written.read_text()).startswith(f"{__file__}:")


def test_where_all_is_library_the_innermost_frame_is_the_place() -> None:
    text = """Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9 in _call_impl
  File "/usr/lib/python3.11/threading.py", line 5 in wait
"""
    assert place_in(text).endswith("/module.py:9 in _call_impl")
    own = '  File "/usr/lib/python3.11/site-packages/mine/model.py", line 3 in forward\n'
    assert place_in(text + own).endswith("/mine/model.py:3 in forward")


@given(st.text())
def test_any_text_has_a_place_or_none(text: str) -> None:
    assert place_in(text) == "" or ":" in place_in(text)
