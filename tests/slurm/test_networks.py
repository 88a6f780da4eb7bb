"""Nodes with a fast network beside the one for management: which of them a run takes, counted in
bytes on the nodes' interfaces, and what it says of one that is not there."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.base import Handle, State
from slurm.cluster import DEV_CLUSTER, Cluster
from slurm.probing import Probe, seen
from trainer.batch import PORTS

pytest.importorskip("torch")

from slurm.training import Training

pytestmark = pytest.mark.timeout(600)

MANAGEMENT, FAST = "eth0", "fast0"
MIB = 2**20
SUMMED_MIB = 16
ONE_EACH: dict[str, Any] = {
    "resources": {"nodes": 2, "ranks_per_node": 1},
    "timeouts": {"start": "60s", "shutdown": "60s"},
}
START_S = 15  # timeouts.start where the run is refused
STEPS = 5
TRAINING = f"""
name: faults
resources: {{nodes: 2, ranks_per_node: 1}}
network: {{interface: {FAST}}}
train:
  model: {{layers: 1, heads: 4, width: 256, context: 16}}
  data: {{synthetic: {{samples: 64}}}}
  batch: {{micro: 1}}
  logging: {{tensorboard: false}}
  steps: {STEPS}
timeouts: {{shutdown: 60s}}
"""


@pytest.fixture(scope="module")
def lab(short_dir: Path) -> Iterator[Cluster]:
    """Two nodes with two networks each, whose names lead to IPv4 and IPv6 addresses."""
    up = Cluster(short_dir / "lab", 2)
    up.dev("up", "2", "--fast", "--names", "both", "--until-pid", str(os.getpid()))
    yield up
    up.dev("down", "--purge")


@pytest.fixture
def both(lab: Cluster, tmp_path: Path) -> Iterator[Probe]:
    """Runs on it, ended with the test."""
    yield Probe(lab, tmp_path)
    lab.reset()


@pytest.fixture
def hosts(lab: Cluster) -> Iterator[Path]:
    """/etc/hosts of all nodes, to be written to."""
    path = lab.state_dir / "hosts"
    old = path.read_text()
    yield path
    path.write_text(old)


def sent(cluster: Cluster) -> dict[str, dict[str, int]]:
    """Bytes sent so far, by node and interface."""
    found = {}
    for node in cluster.nodes:
        links = json.loads(cluster.dev("exec", node, "ip", "-json", "-stats", "link"))
        found[node] = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in links}
    return found


def assert_carried(
    cluster: Cluster, before: Mapping[str, Mapping[str, int]], interface: str, size_bytes: int
) -> None:
    """That each node has sent this much by the interface, and less than a tenth by the others."""
    after = sent(cluster)
    for node in cluster.nodes:
        grown = {name: after[node][name] - before[node][name] for name in (MANAGEMENT, FAST)}
        used = grown.pop(interface)
        assert used >= size_bytes, (node, interface, used)
        assert max(grown.values()) < used / 10, (node, used, grown)


def addresses(handle: Handle) -> set[str]:
    """Both ends of all connections of the ranks' group, and where they meet."""
    ranks = seen(handle)
    ends = {end for rank in ranks for pair in rank["connections"] for end in pair}
    assert ends
    return ends | {rank["environ"]["MASTER_ADDR"] for rank in ranks}


def is_in_one_of(address: str, subnets: Sequence[str]) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(net) for net in subnets)


# --- which network is used ----------------------------------------------------------------------


@pytest.mark.case("L10")
def test_training_takes_the_interface_that_the_job_names(lab: Cluster, tmp_path: Path) -> None:
    before = sent(lab)
    training = Training.submitted(lab, tmp_path, [], TRAINING)
    training.ends(State.DONE)
    assert [address for _, address in training.meetings()] == ["10.78.0.11"]
    parameters = event(training, "start")["parameters"]
    # Of two ranks each sends half of the gradients to the other, and then half of their sums.
    assert_carried(lab, before, FAST, parameters * 4 * STEPS)
    proof = event(training, "network")
    assert (proof["agrees"], proof["interface"]) == (True, FAST)
    assert proof["addresses"] == ["10.78.0.11", "10.78.0.12"]


@pytest.mark.case("L10")
def test_training_over_another_interface_is_stopped(lab: Cluster, tmp_path: Path) -> None:
    """Where something on the nodes, which no job file tells of, changes the variable."""
    (tmp_path / "site").mkdir()
    change = f'import os; os.environ["GLOO_SOCKET_IFNAME"] = "{MANAGEMENT}"\n'
    (tmp_path / "site" / "sitecustomize.py").write_text(change)
    text = TRAINING.replace(f"interface: {FAST}", f"interface: {FAST}, watch: stop")
    text += f"env: {{PYTHONPATH: {tmp_path}/site}}\nattempts: {{failures: 0}}\n"
    training = Training.submitted(lab, tmp_path, [], text)
    reason = training.ends(State.FAILED).reason
    assert "rank 0 on node1 uses the interface eth0 (10.77.0.11), not fast0" in reason
    assert "rank 1 on node2 uses the interface eth0 (10.77.0.12), not fast0" in reason
    assert event(training, "network")["agrees"] is False


def event(training: Training, name: str) -> dict[str, Any]:
    lines = (training.run_dir / "metrics.jsonl").read_text().splitlines()
    found = [line for line in map(json.loads, lines) if line.get("event") == name]
    assert len(found) == 1, lines
    return dict(found[0])


@pytest.mark.slurm24
@pytest.mark.case("L10")
@pytest.mark.parametrize(
    ("network", "interface", "subnets"),
    [
        ({}, MANAGEMENT, ["10.77.0.0/24", "fd77::/64"]),
        ({"host_suffix": "-fast"}, FAST, ["10.78.0.0/24", "fd78::/64"]),
        ({"address_family": "ipv4"}, MANAGEMENT, ["10.77.0.0/24"]),
        ({"address_family": "ipv6"}, MANAGEMENT, ["fd77::/64"]),
    ],
    ids=["by name", "suffix", "ipv4", "ipv6"],
)
def test_ranks_meet_and_talk_in_one_network(
    both: Probe, network: dict[str, str], interface: str, subnets: list[str]
) -> None:
    before = sent(both.cluster)
    handle = both.submit(f"group={SUMMED_MIB}", {**ONE_EACH, "network": network})
    both.ends(handle, State.DONE)
    outside = [a for a in addresses(handle) if not is_in_one_of(a, subnets)]
    assert outside == [], both.logs(handle)
    assert_carried(both.cluster, before, interface, SUMMED_MIB * MIB)


@pytest.mark.case("L03", "L04")
def test_torchrun_on_nodes_without_any_names(both: Probe, hosts: Path) -> None:
    hosts.write_text("127.0.0.1 localhost\n::1 localhost\n")
    handle = both.submit("group", ONE_EACH)
    both.ends(handle, State.DONE)
    assert all(is_in_one_of(a, ["10.77.0.0/24"]) for a in addresses(handle))


# --- what is refused, and by what words ---------------------------------------------------------


def refused(both: Probe, network: dict[str, str]) -> str:
    """What the run says that is given up without a second attempt."""
    timeouts = {"start": f"{START_S}s", "shutdown": "60s"}
    handle = both.submit("done", {**ONE_EACH, "network": network, "timeouts": timeouts})
    both.ends(handle, State.FAILED)
    shown = both.cluster.scontrol(handle.ids["job"])
    assert (shown["ExitCode"], shown["Restarts"]) == ("78:0", "0"), both.logs(handle)
    hours, minutes, seconds = map(int, shown["RunTime"].split(":"))
    assert hours * 3600 + minutes * 60 + seconds <= START_S + 10
    return both.logs(handle)


@pytest.mark.slurm24
@pytest.mark.case("L10", "L11")
def test_an_interface_that_one_node_has_not_is_said_with_what_it_has(both: Probe) -> None:
    rename = ("exec", "node2", "ip", "link", "set")
    both.cluster.dev(*rename, FAST, "down", "name", "slow0")
    try:
        said = refused(both, {"interface": FAST})
    finally:
        both.cluster.dev(*rename, "slow0", "name", FAST, "up")
    assert "node2: the interface 'fast0'" in said
    assert "interfaces of this node: lo: 127.0.0.1, ::1; eth0: 10.77.0.12, fd77::12" in said


@pytest.mark.case("L05", "L10")
@pytest.mark.parametrize(
    ("name", "meaning"),
    [("", "nothing"), ("127.0.1.1 node1-ib", "127.0.1.1"), ("10.99.0.11 node1-ib", "10.99.0.11")],
    ids=["no name", "loopback", "of another machine"],
)
def test_a_suffix_that_makes_no_good_name_of_the_node_is_refused(
    both: Probe, hosts: Path, name: str, meaning: str
) -> None:
    with hosts.open("a") as file:
        file.write(f"{name}\n")
    said = refused(both, {"host_suffix": "-ib"})
    assert f"node1: 'node1-ib' means {meaning} here" in said
    assert "fast0: 10.78.0.11, fd78::11" in said


@pytest.mark.case("L11")
def test_two_cards_in_one_subnet_are_refused_unless_one_is_named(both: Probe) -> None:
    add = "ip link add twin0 type veth peer name twin1 && ip link set twin1 up"
    add += " && ip link set twin0 up && ip addr add 10.77.0.112/24 dev twin0"
    both.cluster.dev("exec", "node2", "sh", "-c", add)
    try:
        said = refused(both, {"address_family": "ipv4"})
        job = {**ONE_EACH, "launcher": "srun", "network": {"interface": MANAGEMENT}}
        handle = both.submit("done", job)
        both.ends(handle, State.DONE)
    finally:
        both.cluster.dev("exec", "node2", "ip", "link", "del", "twin0")
    assert "node2" in said
    assert "the interfaces eth0 and twin0 are both in 10.77.0.0/24" in said


# --- the port -----------------------------------------------------------------------------------

LISTEN = """
import socket, sys
with socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True):
    print("listens", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def taken(cluster: Cluster, node: str, port: int) -> Iterator[None]:
    """Another program listens on this port of the node."""
    enter = [str(DEV_CLUSTER), "--state", str(cluster.state_dir), "exec", node]
    with subprocess.Popen(
        [*enter, sys.executable, "-c", LISTEN, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as listener:  # fmt: skip
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listens\n"
        yield


@pytest.mark.case("L08")
def test_a_port_in_use_on_the_first_node_is_passed_over(both: Probe) -> None:
    handle = both.submit("done", {**ONE_EACH, "launcher": "srun"}, options={"hold": None})
    job = handle.ids["job"]
    first = zlib.crc32(f"{job}.0".encode())  # where the script begins to look
    wanted, other = (PORTS[(first + step) % len(PORTS)] for step in (0, 1))
    with taken(both.cluster, "node1", wanted):
        both.cluster.client("scontrol", "release", job)
        both.ends(handle, State.DONE)
    said = (handle.run_dir / f"logs/slurm-{job}.log").read_text()
    assert f"meeting at fd77::11 port {other}\n" in said
