"""Local runs whose simulated nodes go down and come up again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_local import NODE_SH, Runs, codes, status, supervisor, wait_final, wait_ready

from orchestrator.backends import local
from orchestrator.backends.base import Handle, State
from orchestrator.backends.processes import descendants
from orchestrator.backends.record import Ended, Launch, Record
from orchestrator.backends.simulated import largest, nodes_down, set_node
from orchestrator.backends.supervisor import Supervisor
from orchestrator.contract import EXIT_REQUEUE, RunPaths
from running import wait_for_end, wait_until

BACKEND = local.BACKEND
RANGE = '--nnodes "$ORCHESTRATE_NODES" --sizes "$ORCHESTRATE_SIZES" --join-grace-s 5'
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "runs")
    yield made
    made.close()


@pytest.fixture
def elastic(runs: Runs) -> Runs:
    """Runs of one or two nodes with two ranks each."""
    runs.node_sh = NODE_SH.replace("--nnodes 2", RANGE)
    return runs


def wait_log(handle: Handle, attempt: int, rank: int, words: str) -> None:
    """Return when a rank's log begins with these words."""
    log = RunPaths(handle.run_dir).log(attempt, rank)
    wait_until(lambda: log.exists() and log.read_text().startswith(words), f"{log}: {words}")


def test_an_attempt_has_the_nodes_that_are_up(elastic: Runs) -> None:
    handle = elastic.submit("wait", node_sizes=[1, 2]).handle
    wait_ready(handle)
    below = descendants(supervisor(handle).pid)
    assert set_node(handle.run_dir, 1, up=False).endswith("1 of 2 are up, an attempt has 1 now")
    wait_log(handle, 2, 1, "rank 1 of 2 ")
    wait_for_end(below)  # the first attempt's: also what ranks of the lost node had started
    assert set_node(handle.run_dir, 1, up=True).endswith("2 of 2 are up, an attempt has 2 now")
    wait_log(handle, 3, 3, "rank 3 of 4 ")
    set_node(handle.run_dir, 0, up=False)  # the head: node 1 takes its place
    wait_log(handle, 4, 1, "rank 1 of 2 ")
    BACKEND.cancel(handle)
    assert codes(handle) == [1, 75, 1, 75]
    record = Record.read(handle.run_dir)
    assert record is not None
    assert [ended.nodes_lost for ended in record.ended] == [1, 0, 1, 0]
    assert record.ended[2].reason == "node 0 was taken down"


def test_a_node_that_is_taken_down_counts_as_a_requeue(elastic: Runs) -> None:
    handle = elastic.submit("wait", node_sizes=[1, 2], failures=0, requeues=0).handle
    wait_ready(handle)
    set_node(handle.run_dir, 1, up=False)
    final = wait_final(handle)
    assert final.state is State.FAILED
    assert final.reason == "attempts.requeues of 0 used up: node 1 was taken down"


@pytest.mark.parametrize(
    ("requeues", "used", "deadline_s", "grows"),
    [(0, 0, None, False), (1, 0, None, True), (1, 1, None, False), (2, 1, None, True),
     (1, 0, 0.0, False), (1, 0, 3600.0, True)],
)  # fmt: skip
def test_an_attempt_is_drained_for_a_node_only_if_another_one_may_follow(
    tmp_path: Path, requeues: int, used: int, deadline_s: float | None, grows: bool
) -> None:
    launch = Launch("demo", 2, 2, 0, requeues, deadline_s, 30, 20, (1, 2))
    record = replace(
        Record.of_this_process(),
        ended=tuple(Ended(n + 1, EXIT_REQUEUE, "drained") for n in range(used)),
    )
    with subprocess.Popen(["true"]) as node:
        alone = Supervisor(tmp_path, str(tmp_path), launch, record, nodes={0: node})
        assert alone._can_grow() == grows


def test_a_node_that_is_lost_before_all_have_met_ends_the_wait_of_the_others(runs: Runs) -> None:
    stays_away = 'if [ "$1" = 1 ]; then echo here; exec sleep 600; fi'
    long = NODE_SH.replace("--start-timeout-s 30", "--start-timeout-s 600")
    runs.node_sh = f"{stays_away}\n{long}"
    handle = runs.submit(node_sizes=[2], failures=0, requeues=0, start_timeout_s=600).handle
    log = handle.run_dir / "logs/node-1.log"
    wait_until(lambda: log.exists() and "here" in log.read_text(), "node 1")
    set_node(handle.run_dir, 1, up=False)
    assert wait_final(handle).reason == "attempts.requeues of 0 used up: node 1 was taken down"
    assert RunPaths(handle.run_dir).newest_attempt() == 0


def test_a_job_of_a_fixed_size_waits_for_its_node(runs: Runs) -> None:
    handle = runs.submit("wait").handle
    wait_ready(handle)
    set_node(handle.run_dir, 1, up=False)
    wait_until(
        lambda: status(handle).reason == "an attempt needs 2 nodes, and 1 are up", "it waits"
    )
    assert status(handle).state is State.RESTARTING
    set_node(handle.run_dir, 1, up=True)
    wait_ready(handle, 2)
    BACKEND.cancel(handle)
    assert codes(handle) == [1, 75]


def test_a_cancel_ends_the_wait_for_nodes_and_loses_nothing(runs: Runs) -> None:
    (runs.root / "demo/down-nodes").mkdir(parents=True)
    (runs.root / "demo/down-nodes/0").touch()
    handle = runs.submit("done").handle
    wait_until(lambda: "needs 2 nodes" in status(handle).reason, "it waits")
    assert "CANCELLED" in BACKEND.cancel(handle)
    assert RunPaths(handle.run_dir).newest_attempt() == 0


def test_the_wait_for_nodes_ends(runs: Runs) -> None:
    (runs.root / "demo/down-nodes").mkdir(parents=True)
    (runs.root / "demo/down-nodes/1").touch()
    handle = runs.submit("done", failures=1, start_timeout_s=1).handle
    final = wait_final(handle)
    assert final.state is State.FAILED
    reason = "an attempt needs 2 nodes, and 1 are up, for timeouts.start (1 s)"
    assert final.reason == f"attempts.failures of 1 used up: {reason}"


@pytest.mark.parametrize(("num_up", "size"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 4)])
def test_the_largest_size_that_can_be_had(num_up: int, size: int) -> None:
    assert largest((2, 4), num_up) == size


@pytest.fixture
def standing(tmp_path: Path) -> Path:
    """The folder of a local run of one or two nodes that is not running."""
    run_dir = tmp_path / "runs/demo"
    (run_dir / "rendered").mkdir(parents=True)
    launch = {"version": 1, "name": "demo", "num_nodes": 2, "node_sizes": [1, 2],
              "ranks_per_node": 1, "failures": 0, "requeues": 0, "deadline_s": None,
              "start_timeout_s": 1, "shutdown_timeout_s": 1}  # fmt: skip
    (run_dir / "rendered/launch.json").write_text(json.dumps(launch))
    (run_dir / "receipt.json").write_text(json.dumps({"version": 1, "backend": "local"}))
    return run_dir


def test_the_command_takes_a_node_down_and_up(cli: Cli, standing: Path) -> None:
    code, out, _ = cli("node", "demo", "1", "down")
    assert (code, out) == (0, "node 1 of demo is down: 1 of 2 are up, an attempt has 1 now\n")
    assert nodes_down(standing) == {1}
    assert cli("node", "demo", "0", "down")[1].endswith("0 of 2 are up, an attempt needs 1\n")
    assert cli("node", "demo", "1", "up")[0] == 0
    assert nodes_down(standing) == {0}
    for state in ("up", "up"):
        assert cli("node", "demo", "0", state)[0] == 0
    assert nodes_down(standing) == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "2", "down"), "node 2: the nodes of demo are 0 to 1"),
        (("demo", "-1", "up"), "No such option"),
        (("demo", "one", "up"), "'one' is not a valid integer"),
        (("demo", "1", "away"), "'away' is not one of 'down', 'up'"),
        (("nothing", "1", "up"), "no run 'nothing'"),
        (("demo", "1", "up", "--cluster", "slurm"), "are real ones"),
    ],
)
@pytest.mark.usefixtures("standing")
def test_the_command_refuses_what_is_no_node(
    cli: Cli, arguments: tuple[str, ...], words: str
) -> None:
    code, _, err = cli("node", *arguments)
    assert code == 2
    assert words in err


def test_the_command_wants_an_element_of_a_sweep(cli: Cli, standing: Path) -> None:
    receipt = {"version": 1, "backend": "local", "num_elements": 3}
    (standing / "receipt.json").write_text(json.dumps(receipt))
    code, _, err = cli("node", "demo", "1", "down")
    assert code == 2
    assert "demo is a sweep: name one of its elements, as in demo/0" in err
    assert nodes_down(standing) == set()
