"""A private network on this machine, and process tables and mounts of a pod's own in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.backends.processes import descendants

ADDRESSES = [f"10.77.0.{last}" for last in range(1, 250)]


def missing() -> str:
    """Why no pods can run here, or ""."""
    if not (Path(sys.executable).parent / "orchestrate-node").exists():
        return "orchestrate-node is not installed beside this Python: make setup"
    probe = [*unshare(), "unshare", "-pmu", "--fork", "--mount-proc", "ip", "link", "show", "lo"]
    try:
        tried = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return f"needs unshare (util-linux) and ip (iproute2): {error}"
    return tried.stderr.strip() and f"no namespaces here: {tried.stderr.strip()}"


def unshare() -> list[str]:
    """Begins a network, a process table and mounts of their own, as root in a user namespace where
    the caller is not root."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "-nmp", "--fork", "--kill-child", "--mount-proc"]


class Network:
    """One private network with many addresses; its end ends every process in it."""

    def __init__(self) -> None:
        setup = "".join(f"addr add {address}/32 dev lo\n" for address in ADDRESSES)
        script = 'ip link set lo up && ip -batch - <<< "$0" && echo up && read -r _'
        self.holder = subprocess.Popen(
            [*unshare(), "bash", "-c", script, setup],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == b"up\n"
        (first,) = [p for p in descendants(self.holder.pid) if in_own_table(p.pid) == 1]
        self.init, self.free = first.pid, list(ADDRESSES)

    def command(self) -> list[str]:
        """Begins a process in this network with a process table, mounts and host name anew."""
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        enter = ["nsenter", "-t", str(self.init), "-n", "-m", "-p", *user]
        return [*enter, "unshare", "-pmu", "--fork", "--kill-child", "--mount-proc"]

    def close(self) -> None:
        """End all that runs in it."""
        self.holder.communicate()


def in_own_table(pid: int) -> int | None:
    """A process's pid in the innermost process table that it is in; None once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
