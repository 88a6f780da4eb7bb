"""Time limits through node.py and torchrun: who is late is named, and nothing is left running."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from timeouts_page import Measured, write_rows

from running import PROGRAMS, Nodes, read, wait_for_end, wait_until

pytest.importorskip("torch")
from runs import Run, configuration

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ENDING_S = 10.0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.run_dir.mkdir()
    made.write_text()
    return made


@pytest.fixture
def nodes(run: Run) -> Iterator[Nodes]:
    made = Nodes(run.run_dir, run.workdir, nproc=1, agent="torch.distributed.run")
    yield made
    made.close()


@pytest.fixture(scope="module")
def measured(root: Path, update_golden: bool) -> Iterator[dict[str, Measured]]:
    rows: dict[str, Measured] = {}
    yield rows
    if update_golden:
        write_rows(root, rows)


def trained(nodes: Nodes, run: Run, place: tuple[str, int, int], **limits: Any) -> None:
    """Let the nodes train, with a rank that sleeps in attempt 1 at (phase, steps done, rank)."""
    config = run.run_dir / "trainer.json"
    config.write_text(json.dumps(configuration(checkpoint__every_steps=2, steps=6, **limits)))
    phase, step, rank = map(str, place)
    late = str(PROGRAMS / "late.py")
    nodes.program = (sys.executable, late, str(config), phase, step, rank, "1")


def since_sleep_s(run: Run) -> float:
    """Seconds since the begin of the sleep."""
    return time.time() - float((run.run_dir / "slept-from").read_text())


@pytest.mark.faults
def test_a_rank_that_never_comes_to_the_rendezvous(nodes: Nodes, run: Run) -> None:
    trained(nodes, run, ("before", 0, 1), rendezvous_timeout_s=8)
    nodes.start(0, 1)
    wait_until((run.run_dir / "slept-from").exists, "rank 1 sleeps")
    tree = nodes.tree()
    assert nodes.codes() == {0: 79, 1: 79}
    wait_for_end(tree)
    end = read(run.attempt_dir() / "end.json")
    assert (end["code"], end["node"], end["rank"]) == (79, 1, 1)
    assert "is not over after 8 s (timeouts.rendezvous): rank 1 (" in end["reason"]
    # No rank waits for the words of one that has no watchdog yet.
    assert time.time() - (run.attempt_dir() / "hang").stat().st_mtime < ENDING_S
    words = "where rank 0 waits: its process lives, but has not come to the start of the trainer"
    assert f"is missing from the rendezvous, {words}" in end["reason"]


def test_a_rank_that_is_late_for_the_rendezvous_and_then_not(
    nodes: Nodes, run: Run, measured: dict[str, Measured]
) -> None:
    limit_s = 12.0
    trained(nodes, run, ("start", 0, 1), rendezvous_timeout_s=limit_s)
    nodes.start(0, 1)
    wait_until((run.run_dir / "slept-from").exists, "rank 1 sleeps")
    tree = nodes.tree()
    assert nodes.codes() == {0: 79, 1: 79}
    wait_for_end(tree)
    lasted_s = since_sleep_s(run)
    end = read(run.attempt_dir() / "end.json")
    assert (end["code"], end["node"], end["rank"]) == (79, 1, 1)
    assert "it is in phase start at" in end["reason"]
    # The other rank's time may begin later than the sleep.
    assert time.time() - (run.attempt_dir() / "hang").stat().st_mtime < ENDING_S
    measured["rendezvous, through torchrun"] = Measured(
        "timeouts.rendezvous", limit_s, lasted_s, 79, end["reason"]
    )
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    assert sorted(run.losses()) == [1, 2, 3, 4, 5, 6]


def test_a_node_that_does_not_start(nodes: Nodes, measured: dict[str, Measured]) -> None:
    began = time.time()
    nodes.start(0, start_timeout_s=4)
    assert nodes.codes() == {0: 1}
    lasted_s = time.time() - began
    said = nodes.log(0).read_text()
    assert "node 1 of 2 did not report within 4 s" in said
    assert lasted_s < 4 + ENDING_S
    line = next(line for line in said.splitlines() if "did not report" in line)
    measured["start, a node is missing"] = Measured("timeouts.start", 4, lasted_s, 1, line)


@pytest.mark.faults  # node.py's own tests show it, too
def test_a_rank_that_does_not_stop(nodes: Nodes, run: Run, measured: dict[str, Measured]) -> None:
    trained(nodes, run, ("step", 3, 1), step_timeout_s=60)
    nodes.start(0, 1, shutdown_timeout_s=4)
    wait_until((run.run_dir / "slept-from").exists, "rank 1 sleeps")
    tree, asked = nodes.tree(), time.time()
    for process in nodes.started.values():
        process.terminate()
    assert nodes.codes() == {0: 1, 1: 1}
    wait_for_end(tree)
    lasted_s = time.time() - asked
    end = read(run.attempt_dir() / "end.json")
    assert "not drained within 4 s of SIGTERM" in end["reason"]
    assert re.findall(r"not stopped: rank (\d)", end["reason"]) in (["0", "1"], ["1", "0"])
    assert lasted_s < 4 + ENDING_S
    measured["shutdown, a rank does not stop"] = Measured(
        "timeouts.shutdown", 4, lasted_s, 1, end["reason"]
    )
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    assert run.events("start")[-1]["resumed_from"] == "step-000000002-attempt-00001"
