"""Logs as NCCL writes them, made from the format strings that its releases hold.

The strings were read from libnccl.so of the wheels nvidia-nccl-cu12 2.16.5 to 2.32.3.
"""

from __future__ import annotations

from typing import Any

OLD = ("2.16.5", "2.17.1")
MIDDLE = ("2.18.3", "2.19.3")
NEWER = ("2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1")
NEWEST = ("2.26.5", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
PREFIX = "node1:4711:4790 [0] NCCL INFO "


def _pair(release: str) -> tuple[str, list[int]]:
    """How the release writes two ranks, and their devices: 3 on one node, 8 on another."""
    if release in OLD:
        return "%d[%lx] -> %d[%lx]", [3, 0x1C0, 8, 0xF000]
    return "%d[%d] -> %d[%d]", [3, 3, 8, 0]


def _ends(release: str) -> int:
    """How many words may follow the device of a network."""
    return 3 if release in NEWEST else 2


def net(release: str, name: str, gdr: bool = False, relay: bool = False, way: str = "send") -> str:
    """A connection over a network."""
    pair, ranks = _pair(release)
    words = ["/GDRDMA" if gdr else "", *[""] * (_ends(release) - 2), "/Shared"]
    if way == "receive" and release in ("2.31.2", "2.32.3"):
        words += ["/flush=", "None"]
    device = "%d(%d)" if relay else "%d"
    form = f"Channel %02d/%d : {pair} [{way}] via NET/%s/{device}" + "%s" * len(words)
    values: list[Any] = [0, 0, *ranks, name, 2, *([5] if relay else []), *words]
    return form % tuple(values)


def p2p(release: str, kind: str, read: bool = False) -> str:
    """A connection from one GPU to another."""
    pair, ranks = _pair(release)
    values: list[Any] = [11, 0, *ranks]
    tail = "/read" if read else ""
    if kind == "indirect":
        device = "%d[%lx]" if release in OLD else "%d[%d]"
        return f"Channel %02d/%01d : {pair} via P2P/indirect/{device}%s" % (*values, 1, 1, tail)
    if kind == "direct pointer":
        return f"Channel %02d/%01d : {pair} via P2P/direct pointer%s" % (*values, tail)
    return f"Channel %02d/%01d : {pair} via P2P/%s%s%s" % (*values, kind, tail, "")


def shm(release: str) -> str:
    """A connection through memory that two processes share."""
    pair, ranks = _pair(release)
    if release in ("2.30.7", "2.31.2", "2.32.3"):
        return f"Channel %02d : {pair} via SHM/direct" % (7, *ranks)
    return f"Channel %02d : {pair} via SHM/%s/%s" % (7, *ranks, "direct", "CE")


def collnet(release: str, name: str) -> str:
    """A connection to what sums in the switches between nodes."""
    words = ["/GDRDMA", *[""] * (_ends(release) - 2)]
    form = "CollNet %02d/%1d : %d [send] via COLLNET/%s/%d" + "%s" * len(words)
    return form % (0, 0, 3, name, 1, *words)


def communicator(ranks: int) -> str:
    """The beginning of a communicator (src/init.cc)."""
    form = "ncclCommInitRank comm %#x rank %d nranks %d cudaDev %d nvmlDev %d busId %lx commId %#x"
    return f"{form} - Init START" % (0x55D0, 3, ranks, 3, 3, 0x1C000, 0xBEEF)


def log(*lines: str) -> str:
    """The lines with what NCCL puts before each."""
    return "".join(f"{PREFIX}{line}\n" for line in lines)
