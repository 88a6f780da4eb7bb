"""The parser of NCCL's report: all transports of all releases, and lines that are not whole."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_lines import (
    MIDDLE,
    NEWER,
    NEWEST,
    OLD,
    PREFIX,
    collnet,
    communicator,
    log,
    net,
    p2p,
    shm,
)

from trainer.transports import Report, added, promised_here, read_report, strangers

RELEASES = (*OLD, *MIDDLE, *NEWER, *NEWEST)
NODES = [rank // 8 for rank in range(16)]  # two nodes; rank 3 is on the first, 8 on the second
ONE_NODE = [0] * 16
NETWORKS = ("Socket", "IB", "AWS Libfabric", "gIB", "FasTrak", "GPUDirectTCPX")


def report(*lines: str, nodes: list[int] = NODES) -> Report:
    return read_report(log(*lines), nodes)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_read(release: str, name: str) -> None:
    """A name may hold a space; a device may have the rank by which the data goes."""
    found = report(
        net(release, name),
        net(release, name, gdr=True),
        net(release, name, relay=True),
        net(release, name, gdr=True, way="receive"),
    )
    assert found.between == {f"NET/{name}": 2, f"NET/{name}/GDRDMA": 2}
    assert not found.within


@pytest.mark.parametrize("release", RELEASES)
def test_what_stays_in_a_node_is_read(release: str) -> None:
    kinds = ["IPC", "direct pointer", "indirect", *(["CUMEM"] if release not in OLD else [])]
    lines = [p2p(release, kind, read) for kind in kinds for read in (False, True)]
    found = report(*lines, shm(release), nodes=ONE_NODE)
    assert found.within == {**{f"P2P/{kind}": 2 for kind in kinds}, "SHM": 1}
    assert not found.between


@pytest.mark.parametrize("release", [*NEWER, *NEWEST])
def test_nvlink_between_nodes_is_told_from_nvlink_within_one(release: str) -> None:
    found = report(p2p(release, "MNNVL"), p2p(release, "CUMEM"))
    assert (found.between, found.within) == ({"P2P/MNNVL": 1}, {"P2P/CUMEM": 1})


@pytest.mark.parametrize("release", RELEASES)
def test_sums_in_switches_are_read_and_are_no_breach(release: str) -> None:
    lines = [collnet(release, "SHARP"), net(release, "IB", gdr=True)]
    found = report(*lines, "NVLS multicast support is available on dev 3 (NVLS_NCHANNELS 16)")
    assert found.between == {"COLLNET/SHARP": 1, "NET/IB/GDRDMA": 1}
    assert found.within == {"NVLS": 1}
    assert strangers(found.between, ["NET/IB"]) == strangers(found.within, []) == []
    assert not report("NVLS multicast support is not available on dev 3").within


def test_the_numbers_of_ranks_count_where_all_communicators_hold_all_ranks() -> None:
    """Without P2P and shared memory, NCCL takes the network within a node, too."""
    near, far = net("2.30.7", "Socket").replace("8[0]", "4[4]"), net("2.30.7", "IB")
    found = report(communicator(16), near, far)
    assert (found.between, found.within) == ({"NET/IB": 1}, {"NET/Socket": 1})
    of_a_group = report(communicator(16), communicator(4), near, far)
    assert of_a_group.between == {"NET/IB": 1, "NET/Socket": 1}


def test_the_lines_of_rccl_have_more_at_their_end() -> None:
    line = net("2.18.3", "IB", gdr=True) + " comm 0x7f10 nRanks 16"
    assert report(line).between == {"NET/IB/GDRDMA": 1}


def test_the_interface_by_which_the_ranks_meet() -> None:
    found = report(
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.1.0.5<0>",
        "NET/Socket : Using [0]eth0:10.0.0.5<0> [1]eth1:fe80::1%eth1<0>",
    )
    assert found.interfaces == {"ib0": "10.1.0.5", "eth0": "10.0.0.5", "eth1": "fe80::1"}
    assert found.empty


def test_other_lines_tell_no_transport() -> None:
    lines = [
        "Using network IB", "Trees [0] 1/-1/-1->0->-1", "Channel 00/02 :    0   1   2   3",
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "NET/IB : No device found.",
        "NET/Plugin: Loaded net plugin AWS Libfabric (v10)", "via NET/IB/0/GDRDMA",
    ]  # fmt: skip
    assert report(*lines).empty


def test_threads_and_levels_mix() -> None:
    """Lines of other threads between them, with a time before them, warnings, and no gap."""
    line = net("2.30.7", "IB")
    text = (
        f"[2026-11-30 10:00:00] node1:1:2 [0] NCCL INFO {line}\n"
        "\nnode1:1:3 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got async event : port error\n"
        f"node1:1:9 [7] 12.5 send:1 NCCL TRACE nothing{PREFIX}{line}\n"
        f"{PREFIX}{line}"  # a line without its end, as where a process was killed
    )
    assert read_report(text, NODES).between == {"NET/IB": 2}


@settings(max_examples=60)
@given(st.integers(min_value=0), st.integers(min_value=0))
def test_a_cut_log_tells_no_more_than_the_whole(first: int, last: int) -> None:
    """Cut anywhere, as by the bound on what is read: no name is made up, no count grows."""
    lines = [net("2.32.3", "AWS Libfabric", gdr=True), p2p("2.27.7", "CUMEM"), shm("2.29.7")]
    text = log(communicator(16), *lines, collnet("2.21.5", "SHARP"))
    cut = text[first % len(text) : last % (len(text) + 1)]
    whole, part = read_report(text, NODES), read_report(cut, NODES)
    assert part.between + part.within <= whole.between + whole.within


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_is_borne(text: str) -> None:
    line = log(net("2.30.7", "IB"))
    found = read_report(f"{text}\n{line}", NODES)
    assert found.between["NET/IB"] >= 1


def test_order_and_spread_over_ranks_do_not_count() -> None:
    lines = [net(r, name, gdr=gdr) for r in NEWEST for name in NETWORKS for gdr in (True, False)]
    lines += [shm(release) for release in RELEASES]
    whole = report(*lines)
    random.Random(7).shuffle(lines)
    parts = [report(*lines[at::3]) for at in range(3)]
    assert added(parts) == whole
    assert sum(whole.between.values()) == len(NEWEST) * len(NETWORKS) * 2


def test_what_was_promised() -> None:
    seen = Counter({"NET/IB": 4, "NET/IB/GDRDMA": 8, "NET/Socket": 1, "P2P/MNNVL": 2})
    assert strangers(seen, ["NET/IB"]) == ["NET/Socket", "P2P/MNNVL"]
    assert strangers(seen, ["P2P/MNNVL", "NET/IB", "NET/Socket"]) == []
    assert strangers(seen, ["NET/IB/GDRDMA"]) == ["NET/IB", "NET/Socket", "P2P/MNNVL"]
    assert strangers({"P2P/CUMEM": 1, "SHM": 1}, ["P2P"]) == ["SHM"]
    assert strangers({"NET/IBX": 1}, ["NET/IB"]) == ["NET/IBX"]
    promises = ["P2P/MNNVL", "NET/IB", "SHM", "P2P"]
    assert promised_here(promises, 2) == ["P2P/MNNVL", "NET/IB"]
    assert promised_here(promises, 1) == ["SHM", "P2P"]


@pytest.mark.parametrize(
    ("promised", "reported"),
    [
        ("NET/IB", "NET/IBext/GDRDMA"),
        ("NET/IB", "NET/IBext_v8"),
        ("NET/AWS Libfabric", "NET/Libfabric/GDRDMA"),
        ("NET/GPUDirectTCPX", "NET/GPUDirectTCPX_v7"),
    ],
)
def test_a_plug_in_may_have_another_name_or_its_version_in_it(promised: str, reported: str) -> None:
    assert strangers({reported: 1}, [promised]) == []
    assert strangers({reported: 1}, ["NET/Socket"]) == [reported]
    assert strangers({"NET/IBex": 1}, ["NET/IB"]) == ["NET/IBex"]
