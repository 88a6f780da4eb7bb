"""Runs of two ranks in a namespace with two interfaces: both over the second, where each is named
in turn; then with a second node, a namespace of its own at the other end of that interface."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import wait_until
from runs import Run, configuration

CLONE_NEWNET = 0x40000000  # linux/sched.h
OTHER = "OTHER_NAMESPACE"


def use_the_second(_run: Run, name: str, _step: int) -> None:
    if name == "start":
        os.environ["GLOO_SOCKET_IFNAME"] = "net2"


def be_a_node(run: Run, name: str, step: int) -> None:
    use_the_second(run, name, step)
    if name == "start" and os.environ["RANK"] == "1":
        file = os.open(os.environ[OTHER], os.O_RDONLY)
        assert ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET) == 0
        os.environ.update(GLOO_SOCKET_IFNAME="peer2", MASTER_ADDR="10.77.2.1")


@contextmanager
def second_node() -> Iterator[None]:
    """A namespace that has the interface peer2, while the block runs."""
    with subprocess.Popen(["unshare", "--net", "sleep", "100"]) as holder:
        try:
            _join(holder.pid)
            yield
        finally:
            holder.kill()


def _join(pid: int) -> None:
    own, other = Path("/proc/self/ns/net"), Path(f"/proc/{pid}/ns/net")
    wait_until(lambda: own.readlink() != other.readlink(), "a namespace of its own")
    inside = ["nsenter", f"--net={other}", "ip"]
    for command in (
        ["ip", "link", "set", "peer2", "netns", str(pid)],
        [*inside, "address", "add", "10.77.2.2/24", "dev", "peer2"],
        [*inside, "link", "set", "peer2", "up"],
    ):
        subprocess.run(command, check=True)
    os.environ[OTHER] = str(other)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for interface in ("net1", "net2"):
        config = configuration(num_ranks=2, steps=1, network__interface=interface)
        Run(folder / interface).finish(config, listener=use_the_second)
    os.environ["GROUP_WORLD_SIZE"] = "2"
    with second_node():
        config = configuration(num_ranks=2, ranks_per_node=1, steps=1)
        Run(folder / "nodes").finish(config, listener=be_a_node)
