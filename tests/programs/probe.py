"""Stands in for the trainer on a cluster: notes what a rank finds there. PROBE says what it does:

    done     rank 0 says "done"
    group=M  the ranks form a process group first, with torch, and sum M MiB (or a number) over all
    leave=N  attempts before N: the first one ignores all requests to stop, and so does a process
             below it in a session of its own; those after it wait for the drain file, and rank 0
             says "drained". From attempt N on like done.

Each rank writes attempts/N/seen-R.json: environment, cores, the signals that reached it, the
processes of earlier attempts of the run that this node still has, and the connections of the group.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

ESTABLISHED = "01"  # linux/tcp_states.h
GIVE_UP_S = 120.0  # no test may leave this running
RUN_DIR = Path(os.environ["ORCHESTRATE_RUN_DIR"])
NUMBER = int(os.environ["ORCHESTRATE_ATTEMPT"])
ATTEMPT = RUN_DIR / "attempts" / str(NUMBER)
RANK = int(os.environ["RANK"])
ASKING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM)
received: list[str] = []
connections: list[tuple[str, str]] = []


def main() -> int:
    kind, _, number_given = os.environ["PROBE"].partition("=")
    for number in ASKING:
        signal.signal(number, note)
    left = left_behind()
    if kind == "group":
        form_group(int(number_given or 0))
    elif kind == "leave" and int(number_given) > NUMBER:
        if NUMBER == 1:
            start_stubborn()
        (ATTEMPT / f"ready-{RANK}").touch()
        if not await_drain():
            return 9
        write_seen(left)
        return finish("drained")
    write_seen(left)
    return finish("done")


def note(number: int, _frame: FrameType | None) -> None:
    received.append(signal.Signals(number).name)


def await_drain() -> bool:
    """Whether the drain file came; the first attempt does not look for it."""
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        if NUMBER > 1 and (ATTEMPT / "drain").exists():
            return True
        time.sleep(0.02)
    return False


def start_stubborn() -> None:
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({GIVE_UP_S})"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", code], start_new_session=True)


def left_behind() -> list[str]:
    """The commands of this node's processes that belong to an earlier attempt of the run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        is_of_the_run = f"ORCHESTRATE_RUN_DIR={RUN_DIR}".encode() in environ
        if is_of_the_run and f"ORCHESTRATE_ATTEMPT={NUMBER}".encode() not in environ:
            found.append(command)
    return found


def form_group(mebibytes: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.full([max(1, mebibytes * 2**18)], dist.get_rank() + 1, dtype=torch.float32)
    dist.all_reduce(total)
    assert int(total[-1]) == sum(range(1, dist.get_world_size() + 1))
    connections.extend(connected())
    dist.destroy_process_group()


def connected() -> list[tuple[str, str]]:
    """The addresses of both ends of each TCP connection of this process (proc(5), net/tcp)."""
    open_files = [
        os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    ]
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and f"socket:[{fields[9]}]" in open_files:
                found.append((address(fields[1]), address(fields[2])))
    return found


def address(field: str) -> str:
    """An address of those tables, whose 32-bit words are in this machine's order of bytes."""
    raw = bytes.fromhex(field.partition(":")[0])
    words = (int.from_bytes(raw[i : i + 4], "big") for i in range(0, len(raw), 4))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    ip = ipaddress.ip_address(packed)
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def write_seen(left: list[str]) -> None:
    seen: dict[str, object] = {
        "environ": dict(os.environ), "cores": sorted(os.sched_getaffinity(0)), "left": left,
        "connections": connections, "received": received, "host": socket.gethostname(),
        "workdir": os.getcwd(),
    }  # fmt: skip
    write_json(ATTEMPT / f"seen-{RANK}.json", seen)


def finish(outcome: str) -> int:
    if RANK == 0:
        write_json(ATTEMPT / "outcome.json", {"version": 1, "outcome": outcome, "step": NUMBER})
        if outcome == "done":
            (RUN_DIR / "DONE").touch()
    return 0


def write_json(path: Path, content: dict[str, object]) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(content))
    aside.rename(path)


if __name__ == "__main__":
    sys.exit(main())
