"""One pod and the others on Kubernetes: killed, back too early, left out, its place taken."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import MakePods, attempts, pods_in, waits

from running import Nodes, wait_for_end, wait_until


@pytest.fixture
def make_pods(tmp_path: Path) -> Iterator[MakePods]:
    with pods_in(tmp_path) as make:
        yield make


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_that_is_killed_ends_the_attempt_and_the_next_start_goes_on(
    make_pods: MakePods, node: int
) -> None:
    nodes = make_pods("wait-plain")
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    tree = nodes.tree()
    nodes.started[node].kill()
    assert nodes.codes() == {node: -9, 1 - node: 129}, nodes.all_logs()
    wait_for_end(tree)
    nodes.mode = "done"
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    assert attempts(nodes) == ["1", "2"]


@pytest.mark.parametrize("submissions", [("", ""), ("uid-1", "uid-2")])
def test_a_node_that_has_lost_node_0_reads_the_budget_itself(
    make_pods: MakePods, submissions: tuple[str, str]
) -> None:
    nodes = make_pods("wait-plain", failures=0, submission=submissions[0])
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    nodes.started[0].kill()
    assert nodes.codes() == {0: -9, 1: 1}, nodes.all_logs()
    assert attempts(nodes) == ["1"]
    if submissions[0]:  # node 0 comes back by itself
        nodes.start(0, 1)
        assert nodes.codes() == {0: 1, 1: 1}
    nodes.mode, nodes.also = "done", (*nodes.also, "--submission", submissions[1])
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    assert attempts(nodes) == ["1", "2"]


def test_a_pod_that_is_back_before_the_others_have_left_waits_for_them(
    make_pods: MakePods,
) -> None:
    nodes = make_pods("wait-plain")
    nodes.start(0, 1, shutdown_timeout_s=1)
    nodes.wait_ready()
    nodes.started[0].send_signal(signal.SIGSTOP)  # it has not noticed yet
    nodes.started[1].kill()
    assert nodes.started[1].wait(timeout=60) == -9
    nodes.mode = "done"
    nodes.log(1).unlink()
    nodes.start(1)
    wait_until(lambda: waits(nodes, 1), "it waits")
    nodes.started[0].send_signal(signal.SIGCONT)
    assert nodes.started[0].wait(timeout=60) == 129, nodes.all_logs()
    assert nodes.started[1].poll() is None
    nodes.start(0)
    assert nodes.codes() == {0: 0, 1: 0}, nodes.all_logs()
    assert attempts(nodes) == ["1", "2"]
    assert not (nodes.run_dir / "missed-starts").exists()


def test_a_pod_that_an_attempt_goes_without_waits_as_long_as_that_lasts(
    make_pods: MakePods,
) -> None:
    nodes = make_pods("wait", nnodes=3, sizes="2,3", join_grace_s=0)
    nodes.start(0, 1, start_timeout_s=8)
    alive = nodes.run_dir / "attempts/1/alive"
    wait_until(alive.exists, f"{alive}\n{nodes.all_logs()}")
    nodes.mode = "done"  # of node 2, which takes no part before the next attempt
    nodes.start(2, start_timeout_s=8)
    then = alive.stat().st_mtime
    wait_until(lambda: alive.stat().st_mtime > then + 12, "signs of life")
    assert nodes.started[2].poll() is None, nodes.all_logs()
    nodes.started[1].terminate()
    assert [nodes.started[n].wait(timeout=60) for n in (0, 1)] == [203, 203], nodes.all_logs()
    nodes.also = (*nodes.also, "--join-grace-s", "60")
    nodes.start(0, 1)
    assert nodes.codes() == {0: 0, 1: 0, 2: 0}, nodes.all_logs()
    assert len(os.listdir(nodes.run_dir / "attempts/2/logs")) == 3
    assert not (nodes.run_dir / "missed-starts").exists()


def test_waiting_for_others_beyond_the_time_limit_is_no_missed_start(make_pods: MakePods) -> None:
    nodes = make_pods("wait", nnodes=3, sizes="2,3", join_grace_s=0)
    nodes.start(0, 1, start_timeout_s=4)
    alive = nodes.run_dir / "attempts/1/alive"
    wait_until(alive.exists, f"{alive}\n{nodes.all_logs()}")
    nodes.start(2, start_timeout_s=4, time_limit_s=12)
    assert nodes.started[2].wait(timeout=60) == 203, nodes.all_logs()
    assert "the time limit of 12 s before the attempt had started" in nodes.log(2).read_text()
    assert not (nodes.run_dir / "missed-starts").exists()
    assert nodes.started[0].poll() is None


def test_a_pod_whose_place_is_still_taken_comes_again(make_pods: MakePods) -> None:
    nodes = make_pods("done", nnodes=3)
    nodes.start(0, 1)
    wait_until(lambda: connected(nodes), "node 1 has reported")
    old = nodes.started[1]
    old.send_signal(signal.SIGSTOP)  # its machine is gone: nothing closes its connection
    nodes.start(1)
    wait_until(lambda: "has been taken by" in nodes.log(0).read_text(), "it is turned away")
    old.kill()
    old.wait(timeout=60)
    nodes.start(2)
    assert nodes.codes() == {0: 0, 1: 0, 2: 0}, nodes.all_logs()


def connected(nodes: Nodes) -> bool:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    # proc(5): local address, remote address, state; 01 is established
    return any(k[1].endswith(f":{nodes.port:04X}") and k[3] == "01" for k in lines)
