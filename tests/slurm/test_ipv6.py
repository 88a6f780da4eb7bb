"""Nodes that have IPv6 addresses alone, with and without names, and a time limit that really
comes."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.base import State
from slurm.cluster import Cluster
from slurm.probing import Probe, seen

pytest.importorskip("torch")

from slurm.training import JOB, Outcome, Training, at, outcome

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not Path("/proc/net/if_inet6").exists(), reason="this machine's kernel has no IPv6"
    ),
]
# Slurm counts limits in minutes and may signal up to one early: 45 s before the end of the second.
LIMITED = JOB.replace("ranks_per_node: 2}", "ranks_per_node: 2, time_limit: 2m}").replace(
    "step: 5m, shutdown: 60s", "step: 80s, shutdown: 15s"
)


@pytest.fixture(scope="module")
def ipv6(short_dir: Path) -> Iterator[Cluster]:
    up = Cluster(short_dir / "six", 2)
    up.dev("up", "2", "--ipv6-only", "--until-pid", str(os.getpid()))
    yield up
    up.dev("down", "--purge")


def test_a_time_limit_and_nodes_with_ipv6_addresses_alone(
    ipv6: Cluster, straight: Outcome, tmp_path: Path
) -> None:
    training = Training.submitted(ipv6, tmp_path, [at(1, 2, 6, "wait")], LIMITED)
    training.go_on(1)  # the rank waits for nothing but the signal of the limit
    training.ends(State.DONE)
    assert training.codes() == [75, 0], training.logs()
    assert "[batch] USR1: checkpoint and stop" in training.script_log()
    training.assert_one_run(2)
    assert [ipaddress.ip_address(address).version for _, address in training.meetings()] == [6, 6]
    assert outcome(training.run_dir) == straight


@pytest.mark.slurm24
@pytest.mark.case("L03", "L04")
def test_ranks_that_srun_starts_meet_over_ipv6_without_any_names(
    ipv6: Cluster, tmp_path: Path
) -> None:
    (ipv6.state_dir / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    probe = Probe(ipv6, tmp_path)
    handle = probe.submit("group", {"resources": {"nodes": 2}, "launcher": "srun"})
    probe.ends(handle, State.DONE)
    ranks = seen(handle)
    assert [rank["environ"]["MASTER_ADDR"] for rank in ranks] == ["fd77::11"] * 2
    ends = {end for rank in ranks for pair in rank["connections"] for end in pair}
    assert ends == {"fd77::11", "fd77::12"}
