"""The TCP connections of this process, and the interfaces that they use (proc(5), Linux)."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from trainer.node import ipv4_interfaces, ipv6_interfaces

ESTABLISHED = "01"  # linux/include/net/tcp_states.h
MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address on an IPv6 socket (RFC 4291, 2.5.5.2)


class End(NamedTuple):
    """One end of a connection; address: packed, 4 or 16 bytes."""

    address: bytes
    port: int


class Connection(NamedTuple):
    """A connection of this process: its own end and the other one."""

    own: End
    other: End


def connections(ignored_port: int) -> list[Connection]:
    """The established TCP connections of this process, but for those to or from a port.

    Raises OSError where the kernel does not show them.
    """
    inodes = _own_sockets()
    tables = [Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6")]
    found = [one for table in tables if table.exists() for one in _read(table.read_text(), inodes)]
    return [one for one in found if ignored_port not in (one.own.port, one.other.port)]


def _own_sockets() -> set[str]:
    inodes: set[str] = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # closed meanwhile
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", target):
            inodes.add(match[1])
    return inodes


def _read(table: str, inodes: Collection[str]) -> Iterable[Connection]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED and fields[9] in inodes:
            yield Connection(_end(fields[1]), _end(fields[2]))


def _end(text: str) -> End:
    """An end as the kernel writes it: words of 32 bits in the machine's order, and a port."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return End(packed.removeprefix(MAPPED), int(port, 16))


def by_interface(ends: Iterable[bytes]) -> dict[str, str]:
    """One of these own addresses, as text, for each interface that has some of them.

    Raises OSError where the kernel does not tell the interfaces.
    """
    interfaces = {**ipv4_interfaces(), **ipv6_interfaces()}
    found: dict[str, str] = {}
    for packed in ends:
        address = ipaddress.ip_address(packed)
        # The kernel answers on all of 127.0.0.0/8, of which the interface has one address.
        name = interfaces.get(packed, "lo" if address.is_loopback else "?")
        # An alias such as eth0:1 is the interface eth0.
        found.setdefault(name.partition(":")[0], str(address))
    return found
