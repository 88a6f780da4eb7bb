"""The kernel's table of connections: own ones, of both families, with their interfaces."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.connections import Connection, End, _end, by_interface, connections


@contextlib.contextmanager
def connected(address: str, dual: bool = False) -> Iterator[tuple[int, int]]:
    """A connection of this process with itself; the ports of its two ends.

    dual: the far end is an IPv6 socket, which writes an IPv4 address in its own way.
    """
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    where = "::" if dual else address
    with socket.create_server((where, 0), family=family, dualstack_ipv6=dual) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port)) as here, server.accept()[0]:
            yield here.getsockname()[1], port


@pytest.mark.parametrize(
    ("address", "dual"),
    [("127.0.0.1", False), ("127.0.0.7", False), ("::1", False), ("127.0.0.1", True)],
)
def test_both_ends_of_a_connection_are_seen(address: str, dual: bool) -> None:
    try:
        with connected(address, dual) as (here, there):
            seen = connections(ignored_port=0)
            without = connections(ignored_port=there)
    except OSError as error:
        pytest.skip(f"no connection to {address} here: {error}")
    mine = [one for one in seen if there in (one.own.port, one.other.port)]
    near, far = sorted(mine, key=lambda one: one.own.port == there)
    assert (near.own.port, far.own.port) == (here, there)
    assert near == Connection(own=far.other, other=far.own)
    assert far.own.address == ipaddress.ip_address(address).packed
    assert not {near, far} & set(without)


def test_a_listening_socket_and_a_closed_connection_do_not_count() -> None:
    before = connections(ignored_port=0)
    with connected("127.0.0.1"):
        pass
    with socket.create_server(("127.0.0.1", 0)):
        assert connections(ignored_port=0) == before


def test_the_interface_of_an_address() -> None:
    loopback = [ipaddress.ip_address(text).packed for text in ("127.0.0.1", "127.0.0.9")]
    assert by_interface(loopback) == {"lo": "127.0.0.1"}
    nobodys = ipaddress.ip_address("192.0.2.1").packed  # of documents (RFC 5737)
    assert by_interface([nobodys]) == {"?": "192.0.2.1"}


@given(st.ip_addresses(), st.integers(min_value=0, max_value=65535))
def test_an_address_is_read_as_the_kernel_writes_it(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    words = [address.packed[at : at + 4] for at in range(0, len(address.packed), 4)]
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    mapped = getattr(address, "ipv4_mapped", None)
    assert _end(f"{text}:{port:04X}") == End((mapped or address).packed, port)
