"""The address that the ranks of a node use: by interface, by name, by family; in real network
namespaces, each of which ends with its command."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running import Nodes, free_port
from trainer import batch, node
from trainer.node import Head, Leave, Signals

HOST = socket.gethostname()
in_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="namespaces need root and ip here"
)
# Two interfaces: one for management, a fast one with both families.
TWO = """ip link set lo up; ip link add eth1 type veth peer name eth10
ip addr add 10.1.0.5/24 dev eth1; ip link set eth1 up
ip addr add 10.2.0.5/24 dev eth10; ip addr add fd02::5/64 dev eth10 nodad; ip link set eth10 up
"""
ONE_SUBNET = """ip link set lo up; ip link add eth1 type veth peer name eth2
ip link set eth1 up; ip link set eth2 up; ip addr add 10.1.0.5/16 dev eth1
ip addr add fd01::5/64 dev eth1 nodad; ip addr add fd01::6/64 dev eth2 nodad
"""
ASK = f"""
import argparse, json, runpy, sys
module = runpy.run_path({node.__file__!r}, run_name="node")
given = dict(nnodes=2, local_world_size=1, allow_loopback=False, interface="", host_suffix="",
             address_family=None, head="10.1.0.1", address="10.1.0.5", backend="nccl")
answers = []
for asked in json.loads(sys.argv[1]):
    args = argparse.Namespace(**{{**given, **asked}})
    try:
        args.rank_address = module["rank_address"](args)
        twins = module["has_twin_routes"](args)
        answers.append([args.rank_address, twins, module["network_variables"](args, {{}})])
    except ValueError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def entered(folder: Path, set_up: str, *command: str, hosts: str = "", **more: str) -> str:
    """What a command prints in a network of its own, with its own /etc/hosts."""
    file = folder / "hosts"
    file.write_text(f"127.0.0.1 localhost\n{hosts}")
    shell = f'{set_up}\nmount --bind "$1" /etc/hosts; shift; exec "$@"'
    enter = ["unshare", "--net", "--mount", "sh", "-ec", shell, "sh", str(file)]
    environment = {**os.environ, "SLURMD_NODENAME": "node-1", **more}
    done = subprocess.run(
        [*enter, *command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def asked(
    folder: Path, set_up: str, *questions: dict[str, Any], hosts: str = "", **more: str
) -> list[Any]:
    """[address, twin routes, variables] for each set of arguments, or what is wrong."""
    python = (sys.executable, "-I", "-S", "-c", ASK, json.dumps(questions))
    found = json.loads(entered(folder, set_up, *python, hosts=hosts, **more))
    assert isinstance(found, list)
    return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "run").mkdir()
    made = Nodes(tmp_path / "run", tmp_path)
    yield made
    made.close()


@pytest.mark.case("L11")
@pytest.mark.parametrize("direct", [False, True])
def test_a_wrong_interface_ends_all_with_the_nodes_name_and_what_it_has(
    nodes: Nodes, direct: bool
) -> None:
    nodes.direct, nodes.nproc = direct, 1 if direct else 2
    nodes.start(0, interface="lo")
    nodes.start(1, interface="eth77")
    assert nodes.codes() == {0: 78, 1: 78}, nodes.all_logs()
    text = f"node {0 if direct else 1} ({HOST}): the interface 'eth77' has no address here that "
    for number in (0, 1):
        log = nodes.log(number).read_text()
        assert f"{text}other nodes can reach; interfaces of this node: " in log
        assert "lo: 127.0.0.1" in log
    assert not (nodes.run_dir / "attempts").exists()


@pytest.mark.case("L11")
def test_a_fault_of_node_0_reaches_the_others(nodes: Nodes) -> None:
    nodes.start(1)
    nodes.start(0, interface="eth77")
    assert nodes.codes() == {0: 78, 1: 78}, nodes.all_logs()
    assert f"node 0 ({HOST}): the interface 'eth77'" in nodes.log(1).read_text()


@pytest.mark.case("L10")
def test_a_node_that_does_not_reach_node_0_for_its_fault_says_it_at_its_end(nodes: Nodes) -> None:
    nodes.start(1, interface="eth77", start_timeout_s=0.3)
    assert nodes.codes() == {1: 78}, nodes.all_logs()
    said = nodes.log(1).read_text()
    assert re.search(rf"no go from node 0 .*: {HOST}: the interface 'eth77' has no address", said)


def test_a_fault_is_not_kept_back_for_nodes_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "FAULT_GRACE_S", 0.0)
    args = argparse.Namespace(
        nnodes=2, sizes=[2], host="h", gpus=0, fault="no eth77", address="127.0.0.1",
        port=free_port(), start_timeout_s=600, join_grace_s=0, local_world_size=1,
    )  # fmt: skip
    head, signals = Head(args), Signals()
    try:
        with pytest.raises(Leave, match=r"^node 0 \(h\): no eth77$") as caught:
            head.gather(signals)
    finally:
        head.close_roll_call()
    assert caught.value.code == 78


@pytest.mark.case("L11")
def test_a_node_that_finds_no_way_for_want_of_its_interface_says_so(nodes: Nodes) -> None:
    nodes.start(1, head="no-such-name.invalid", address="", interface="eth77")
    assert nodes.codes() == {1: 78}
    text = f"{HOST}: the interface 'eth77' has no address here that other nodes can reach; "
    assert text in nodes.log(1).read_text()


@in_namespaces
@pytest.mark.case("L10", "L11")
def test_an_interface_by_its_whole_name_and_an_address_of_the_wanted_kind(tmp_path: Path) -> None:
    answers = asked(
        tmp_path, TWO,
        {"interface": "eth1"}, {"interface": "eth10"}, {"interface": "eth"},
        {"interface": "eth10", "address_family": "ipv6"},
        {"interface": "eth10", "head": "fd02::1"},
        {"interface": "eth1", "address_family": "ipv6"},
        {"interface": "lo"},
    )  # fmt: skip
    assert [a[0] for a in answers[:2]] == ["10.1.0.5", "10.2.0.5"]
    assert answers[0][2] == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    has = "interfaces of this node: lo: 127.0.0.1, ::1; eth10: 10.2.0.5, fd02::5"
    assert answers[2].startswith("the interface 'eth' has no address here")
    assert has in answers[2]
    assert [a[0] for a in answers[3:5]] == ["fd02::5", "fd02::5"]
    assert answers[3][2]["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert answers[5].startswith("the interface 'eth1' has no IPv6 address here")
    assert answers[6].startswith("the interface 'lo' has no address here that other nodes can")


@in_namespaces
@pytest.mark.case("L10")
def test_a_name_with_the_suffix_leads_to_the_fast_interface(tmp_path: Path) -> None:
    hosts = "10.1.0.5 node-1\n10.2.0.5 node-1-fast\n10.9.0.5 node-1-other\nfd02::5 node-1-fast\n"
    answers = asked(
        tmp_path, TWO,
        {"host_suffix": "-fast"},
        {"host_suffix": "-fast", "address_family": "ipv6", "backend": "gloo"},
        {"host_suffix": "-other"}, {"host_suffix": "-none"},
        hosts=hosts,
    )  # fmt: skip
    assert answers[0][0] == "10.2.0.5"
    assert answers[0][2] == {"GLOO_SOCKET_IFNAME": "eth10", "NCCL_SOCKET_IFNAME": "=eth10"}
    assert answers[1] == ["fd02::5", "", {"GLOO_SOCKET_IFNAME": "eth10"}]
    assert answers[2].startswith("'node-1-other' means 10.9.0.5, which is no address of this node;")
    assert answers[3].startswith("'node-1-none' does not resolve: ")
    of_batch = [sys.executable, "-I", "-S", batch.__file__, "head", "7.0"]
    suffix = ("--host-suffix", "-fast", "node-1")
    assert entered(tmp_path, TWO, *of_batch, *suffix, hosts=hosts).startswith("10.2.0.5 ")
    family = ("--address-family", "ipv6")
    assert entered(tmp_path, TWO, *of_batch, *family, *suffix, hosts=hosts).startswith("fd02::5 ")
    said = entered(tmp_path, TWO, *of_batch, "--host-suffix", "-other", "node-1", hosts=hosts)
    assert f"{HOST}: 'node-1-other' means 10.9.0.5 here, and no address of this node" in said
    said = entered(tmp_path, TWO, *of_batch, *family, "--interface", "eth1")
    assert f"{HOST}: the interface 'eth1' has no IPv6 address here; interfaces" in said


@in_namespaces
@pytest.mark.case("L04")
def test_an_address_of_the_other_kind_is_that_of_the_same_interface(tmp_path: Path) -> None:
    answers = asked(
        tmp_path, TWO,
        {"address": "10.2.0.5", "address_family": "ipv6"},
        {"address": "10.2.0.5", "address_family": "ipv4"},
        {"address": "10.1.0.5", "address_family": "ipv6"},
        {"address": "fd02::5", "head": "fd02::1"},
    )  # fmt: skip
    assert [a[0] for a in answers[:2]] == ["fd02::5", "10.2.0.5"]
    assert answers[0][2]["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert answers[2].startswith("the interface of 10.1.0.5 has no IPv6 address here")
    assert answers[3] == ["fd02::5", "", {"GLOO_SOCKET_IFNAME": "eth10"}]
    # gloo takes the first address of an interface: by this node's own name it finds the right one.
    question = {"address": "10.2.0.5", "address_family": "ipv6", "backend": "gloo"}
    for own, variables in (("fd02::5", {}), ("10.2.0.5", {"GLOO_SOCKET_IFNAME": "eth10"})):
        (answer,) = asked(tmp_path, TWO, question, hosts=f"{own} {HOST}\n")
        assert answer == ["fd02::5", "", variables]


@in_namespaces
@pytest.mark.case("L11")
@pytest.mark.parametrize(
    ("second", "asked_for", "more", "is_refused"),
    [
        ("ip addr add 10.1.0.6/16 dev eth2", {}, {}, True),
        ("ip addr add 10.1.0.6/16 dev eth2", {"interface": "eth1"}, {}, False),
        ("ip addr add 10.1.0.6/16 dev eth2", {}, {"GLOO_SOCKET_IFNAME": "eth1"}, False),
        ("ip addr add 10.1.0.6/24 dev eth2", {}, {}, False),  # a smaller one: no tie
        ("ip route add 10.1.0.0/16 dev eth2 metric 600", {}, {}, False),
        ("true", {"address": "fd01::5", "head": "fd01::1"}, {}, True),
        ("true", {}, {}, False),
    ],
)  # fmt: skip
def test_two_interfaces_in_one_subnet_are_refused_unless_one_is_named(
    tmp_path: Path, second: str, asked_for: dict[str, str], more: dict[str, str], is_refused: bool
) -> None:
    answer = asked(tmp_path, f"{ONE_SUBNET}\n{second}\n", asked_for, **more)[0]
    if not is_refused:
        assert answer[1] == ""
        return
    network = "fd01::/64" if asked_for else "10.1.0.0/16"
    assert answer[1].startswith(f"the interfaces eth1 and eth2 are both in {network}: which one")
    assert "Name it with network.interface; interfaces of this node: lo: " in answer[1]


@pytest.mark.parametrize(
    ("name", "value", "is_here"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", True),
        ("GLOO_SOCKET_IFNAME", "l", False),
        ("GLOO_SOCKET_IFNAME", "lo,eth77", False),
        ("NCCL_SOCKET_IFNAME", "=lo", True),
        ("NCCL_SOCKET_IFNAME", "=eth77,lo", True),
        ("NCCL_SOCKET_IFNAME", "=l", False),
        ("NCCL_SOCKET_IFNAME", "l", True),
        ("NCCL_SOCKET_IFNAME", "hsn", False),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", True),
    ],
)
def test_variables_that_name_no_interface_are_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, is_here: bool
) -> None:
    for other in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    fault = node.names_nothing(argparse.Namespace(backend="nccl"))
    assert (fault == "") == is_here
    if not is_here:
        assert fault.startswith(f"{name} is {value!r}, and no interface here is called so; ")
        assert "lo: 127.0.0.1" in fault


def test_a_job_whose_variable_names_nothing_is_not_tried_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    nodes.nnodes = 1
    nodes.start(0)
    assert nodes.codes() == {0: 78}
    assert f"node 0 ({HOST}): GLOO_SOCKET_IFNAME is 'eth77'" in nodes.log(0).read_text()


@in_namespaces
@pytest.mark.parametrize(
    ("backend", "variables"),
    [
        ("gloo", {}),
        ("nccl", {}),
        ("cpu:gloo,cuda:nccl", {}),
        ("xccl", {"CCL_KVS_IFACE": "eth1"}),
        ("hccl", {"HCCL_SOCKET_IFNAME": "=eth1", "HCCL_IF_IP": "10.1.0.5"}),
        ("cncl", {}),
    ],
)
def test_each_library_is_told_what_it_needs(
    tmp_path: Path, backend: str, variables: dict[str, str]
) -> None:
    answer = asked(tmp_path, TWO, {"backend": backend})[0]
    assert answer[2] == {"GLOO_SOCKET_IFNAME": "eth1", **variables}


def test_what_the_job_sets_for_a_library_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    args = argparse.Namespace(
        rank_address="127.0.0.1", backend="hccl", interface="lo", host_suffix="",
        address_family=None, run_dir="/r", workdir="/w", direct=False,
    )  # fmt: skip
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "=ib0")
    found = node.environment(args, {"attempt": 1})
    assert found["GLOO_SOCKET_IFNAME"] == "ib0"
    assert found["HCCL_SOCKET_IFNAME"] == "=ib0"
    assert "HCCL_IF_IP" not in found
