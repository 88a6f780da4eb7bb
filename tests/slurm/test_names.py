"""Ranks meet whatever the nodes' names resolve to: aliases of other networks, service names,
loopback addresses, cards that lead nowhere, no names at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends.base import State
from running import NODE_PY, PROGRAMS, free_port
from slurm.cluster import DEV_CLUSTER, Cluster
from slurm.probing import PAIR, Probe, seen

ONLY_LOCAL = "127.0.0.1 localhost\n"
LOOPBACK = ONLY_LOCAL + "127.0.1.1 node1 node2 node3\n"  # Debian's way with a host's own name
OTHER_CARD = ONLY_LOCAL + "10.99.0.11 node1\n10.99.0.12 node2\n10.99.0.13 node3\n"


@pytest.fixture
def hosts(site: Cluster) -> Iterator[Path]:
    """/etc/hosts of all nodes, to be written to."""
    path = site.state_dir / "hosts"
    old = path.read_text()
    yield path
    path.write_text(old)


@pytest.fixture
def second_cards(site: Cluster) -> Iterator[None]:
    """Each node gets a second card, which leads nowhere."""
    for number, node in enumerate(site.nodes, start=11):
        make = "ip link add slow0 type veth peer name slow1 && ip link set slow1 up"
        make += f" && ip addr add 10.99.0.{number}/24 dev slow0 && ip link set slow0 up"
        site.dev("exec", node, "sh", "-c", make)
    yield
    for node in site.nodes:
        site.dev("exec", node, "ip", "link", "del", "slow0")


@pytest.mark.case("L03", "L04", "L05", "L10")
@pytest.mark.usefixtures("second_cards")
@pytest.mark.parametrize(
    ("names", "network"),
    [(ONLY_LOCAL, {}), (LOOPBACK, {}), (OTHER_CARD, {"interface": "eth0"})],
    ids=["no names", "loopback", "other card"],
)
def test_ranks_meet_whatever_the_nodes_names_say(
    probe: Probe, hosts: Path, names: str, network: dict[str, str]
) -> None:
    pytest.importorskip("torch")
    hosts.write_text(names)
    job = {
        **PAIR, "resources": {"nodes": 2, "ranks_per_node": 1}, "launcher": "srun",
        "network": network,
    }  # fmt: skip
    handle = probe.submit("group", job)
    probe.ends(handle, State.DONE)
    for rank in seen(handle):
        assert rank["environ"]["MASTER_ADDR"] == "10.77.0.11"
        assert rank["environ"]["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.case("L10", "L11")
def test_an_interface_that_a_node_has_not_is_said_with_what_it_has(probe: Probe) -> None:
    job = {**PAIR, "network": {"interface": "eth"}}  # the beginning of a name is no name
    handle = probe.submit("done", job)
    probe.ends(handle, State.FAILED)
    assert "node1: the interface 'eth' has no address here" in probe.logs(handle)
    assert "interfaces of this node: lo: 127.0.0.1" in probe.logs(handle)
    assert "; eth0: 10.77.0.11" in probe.logs(handle)


ALIASES = (
    "10.77.0.11 node1 run-0 run-0.run run-0.run.team.svc.cluster.local\n"
    "10.77.0.12 node2 run-1 run-1.run run-1.run.team.svc.cluster.local\n"
)


@pytest.fixture
def alias_network(site: Cluster) -> Iterator[None]:
    """Each node gets a second address on its card, as on InfiniBand beside Ethernet."""
    for number, node in enumerate(site.nodes, start=11):
        site.dev("exec", node, "ip", "addr", "add", f"10.88.0.{number}/24", "dev", "eth0")
    yield
    for number, node in enumerate(site.nodes, start=11):
        site.dev("exec", node, "ip", "addr", "del", f"10.88.0.{number}/24", "dev", "eth0")


@pytest.mark.case("L01", "L02")
@pytest.mark.usefixtures("alias_network")
@pytest.mark.parametrize(
    ("head", "agent"),
    [
        ("run-0", "stub_agent"),
        ("run-0.run", "stub_agent"),
        ("run-0.run.team.svc.cluster.local", "stub_agent"),
        ("10.88.0.11", "torch.distributed.run"),
    ],
)
def test_node_0_is_told_that_it_is_and_need_not_know_the_name(
    site: Cluster, hosts: Path, tmp_path: Path, head: str, agent: str
) -> None:
    hosts.write_text(ONLY_LOCAL + ALIASES)
    if agent != "stub_agent":
        pytest.importorskip("torch")
    (tmp_path / "run").mkdir()
    port = free_port()
    nodes = [start(site, tmp_path, rank, head, port, agent) for rank in (0, 1)]
    try:
        said = [node.communicate(timeout=120)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    log = tmp_path / "run/attempts/1/logs/rank-00001.log"
    assert log.read_text() == f"rank 1 of 2 in {tmp_path}\n"


def start(
    site: Cluster, folder: Path, rank: int, head: str, port: int, agent: str
) -> subprocess.Popen[str]:
    """Start node.py on a node of the cluster; the host name there is not the head's name."""
    options = {
        "run-dir": folder / "run", "workdir": folder, "nnodes": 2, "node-rank": rank,
        "nproc-per-node": 1, "head": head, "port": port, "id": "x", "start-timeout-s": 60,
        "shutdown-timeout-s": 20, "agent": agent,
    }  # fmt: skip
    flat = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    program = ["--", sys.executable, str(PROGRAMS / "program.py"), "done"]
    enter = [str(DEV_CLUSTER), "--state", str(site.state_dir), "exec", site.nodes[rank]]
    return subprocess.Popen(
        [*enter, sys.executable, str(NODE_PY), *flat, *program],
        env=os.environ | {"PYTHONPATH": str(PROGRAMS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
