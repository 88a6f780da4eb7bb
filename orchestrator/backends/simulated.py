"""The simulated nodes of a local run: where each is, and which of them are up.

A node is down while there is a file with its number in the folder `down-nodes` of the run folder.
The supervisor looks there: it kills what runs on a node that goes down, as a power failure would.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

from orchestrator import contract
from orchestrator.backends.record import Launch
from orchestrator.errors import BackendError, UserError

DOWN_DIR = "down-nodes"
PORTS = range(20000, 32000)  # below the ephemeral range of Linux, 32768 to 60999 (ip(7))


def loopback_address(node: int) -> str:
    """An address of its own for each simulated node, from 127.0.0.1 on."""
    return f"127.0.{node // 253}.{1 + node % 253}"


def reserve_port(seed: str) -> tuple[int, socket.socket]:
    """A free port, and a socket that keeps other runs of this machine off it while it is open.

    Raises BackendError if 500 ports in a row are taken.
    """
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0orchestrate-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
            return port, mark
        except OSError:
            mark.close()
    raise BackendError(f"no free port among 500 between {PORTS[0]} and {PORTS[-1]}")


def nodes_down(run_dir: Path) -> set[int]:
    """The numbers of the nodes of a run that are down."""
    try:
        return {int(name) for name in os.listdir(run_dir / DOWN_DIR) if name.isdecimal()}
    except FileNotFoundError:
        return set()


def largest(sizes: Sequence[int], num_up: int) -> int:
    """With how many of the nodes that are up an attempt begins; 0 if they are too few."""
    return max((size for size in sizes if size <= num_up), default=0)


def set_node(run_dir: Path, node: int, *, up: bool) -> str:
    """Take a node of a local run down, or bring it up again; returns what follows, in words.

    Raises UserError for a number that is no node's, BackendError if the run was never started here.
    """
    launch = Launch.read(run_dir / contract.RENDERED_DIR / "launch.json")
    if not 0 <= node < launch.num_nodes:
        raise UserError(f"node {node}: the nodes of {launch.name} are 0 to {launch.num_nodes - 1}")
    mark = run_dir / DOWN_DIR / str(node)
    if up:
        mark.unlink(missing_ok=True)
    else:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    num_up = launch.num_nodes - len(nodes_down(run_dir) & set(range(launch.num_nodes)))
    size = largest(launch.sizes, num_up)
    then = f"an attempt has {size} now" if size else f"an attempt needs {launch.sizes[0]}"
    word = "up" if up else "down"
    return f"node {node} of {launch.name} is {word}: {num_up} of {launch.num_nodes} are up, {then}"
