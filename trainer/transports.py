"""What NCCL says of its transports, read from its own log.

The lines are those of NCCL 2.16 to 2.32 at the level INFO of the part INIT; RCCL writes the same
with more at the end. Each is of one connection between two ranks, seen from one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# src/transport/{p2p,shm,net,coll_net}.cc of NCCL. In brackets is the number of the GPU or, before
# 2.18, its place on the bus. After the device of NET there may be a rank in parentheses, by which
# the data goes. The name of a network may hold a space.
_CONNECTION = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<first>\d+)\[[0-9a-f]+\] -> (?P<second>\d+)\[[0-9a-f]+\]"
    r" (?:\[(?:send|receive)\] )?via (?:"
    r"P2P/(?P<p2p>direct pointer|[A-Za-z]+)|(?P<shm>SHM)/|"
    r"NET/(?P<net>[^/\n]+)/\d+(?:\(\d+\))?(?P<gdr>/GDRDMA)?)[^\n]*\n"
)
_COLLNET = re.compile(
    r"CollNet \d+/\d+ : \d+ \[(?:send|receive)\] via COLLNET/(?P<net>[^/\n]+)/\d+[^\n]*\n"
)
# src/init.cc: only in a communicator of all ranks are its numbers those of the run.
_COMMUNICATOR = re.compile(r"\bcomm 0x[0-9a-f]+ rank \d+ n[rR]anks (?P<size>\d+)\b[^\n]*\n")
# src/transport/net_socket.cc and net_ib.cc: by which interface the ranks find one another.
_SOCKET = re.compile(r"NET/(?:Socket : Using|IB : Using[^\n]*; OOB)(?P<list>[^\n]*)\n")
_INTERFACE = re.compile(
    r"(?:\[\d+\])?(?P<name>[^\s\[\]<>:]+):(?P<address>[0-9A-Fa-f.:]+)(?:%[^<\s]*)?<\d+>"
)
# src/transport/nvls.cc, since 2.17.
_NVLS = re.compile(r"NVLS multicast support is available on dev \d+[^\n]*\n")

NVLINK_BETWEEN = "P2P/MNNVL"  # NVLink that leads out of the node
IN_SWITCHES = ("COLLNET/", "NVLS")
OF_NETWORK = ("NET/", "COLLNET/", NVLINK_BETWEEN)


@dataclass
class Report:
    """How many connections each transport has, between nodes and within one.

    interfaces: addresses of the sockets by which the ranks meet, by interface.
    """

    between: Counter[str] = field(default_factory=Counter)
    within: Counter[str] = field(default_factory=Counter)
    interfaces: dict[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing is told of a connection."""
        return not (self.between or self.within)


def read_report(text: str, nodes: Sequence[int]) -> Report:
    """What a log tells. A line that is not whole does not count.

    nodes: for each rank the number of its node.
    """
    report = Report()
    sizes = {int(found["size"]) for found in _COMMUNICATOR.finditer(text)}
    known = nodes if sizes == {len(nodes)} else None
    for found in _CONNECTION.finditer(text):
        name = _name(found)
        ends = int(found["first"]), int(found["second"])
        side = report.between if _is_between(name, ends, known, nodes) else report.within
        side[name] += 1
    for found in _COLLNET.finditer(text):
        report.between[f"COLLNET/{found['net']}"] += 1
    if count := len(_NVLS.findall(text)):
        report.within["NVLS"] += count
    for found in _SOCKET.finditer(text):
        for one in _INTERFACE.finditer(found["list"]):
            report.interfaces.setdefault(one["name"], one["address"])
    return report


def _name(found: re.Match[str]) -> str:
    if found["p2p"]:
        return f"P2P/{found['p2p']}"
    if found["shm"]:
        return "SHM"
    return f"NET/{found['net']}{found['gdr'] or ''}"


def _is_between(
    name: str, ends: tuple[int, int], known: Sequence[int] | None, nodes: Sequence[int]
) -> bool:
    """Whether the two ranks are on different nodes.

    Where their numbers are those of a group, the kind of the transport must do: within a node NCCL
    takes the network only where nothing else is left.
    """
    if len(set(nodes)) == 1:
        return False
    if known is not None and max(ends) < len(known):
        return known[ends[0]] != known[ends[1]]
    return name.startswith(OF_NETWORK)


def added(reports: Iterable[Report]) -> Report:
    """One report of all ranks."""
    total = Report()
    for report in reports:
        total.between.update(report.between)
        total.within.update(report.within)
        total.interfaces.update(report.interfaces)
    return total


def strangers(counts: Mapping[str, int], promised: Sequence[str]) -> list[str]:
    """The transports that were not promised: NET/IB is also NET/IB/GDRDMA.

    What sums inside of switches comes beside another transport, and is none by itself.
    """
    return [
        name
        for name in sorted(counts)
        if not name.startswith(IN_SWITCHES) and not any(_is_of(name, kind) for kind in promised)
    ]


# The same network under another name: aws-ofi-nccl after 1.11 calls itself so (its
# nvidia_plugin_name_fixup), and so does the plug-in of NVIDIA's HPC-X.
ALSO = {"NET/AWS Libfabric": ("NET/Libfabric",), "NET/IB": ("NET/IBext",)}
VERSION = re.compile(r"_v\d+(?=/|$)")  # of a plug-in's interface, as in NET/IBext_v8


def _is_of(name: str, kind: str) -> bool:
    bare = VERSION.sub("", name)
    return any(bare == k or bare.startswith(f"{k}/") for k in (kind, *ALSO.get(kind, ())))


def promised_here(promises: Sequence[str], num_nodes: int) -> list[str]:
    """The promises that can be checked: of the network, or where there is one node the others."""
    return [name for name in promises if name.startswith(OF_NETWORK) == (num_nodes > 1)]
