"""What a batch script asks on the first node of a job: where to meet, and whether to go on.

    batch.py head ID PEER...     prints "ADDRESS PORT" of this node, where node 0 will listen
    batch.py next RUN_DIR ID CODE FAILURES REQUEUES DEADLINE_S
                                 prints "again CODE" if the job is to be started again, "end CODE"
                                 if not, with the code that the nodes agreed on

ID is JOB.RESTARTS, by which node.py claims an attempt.
Standard library only, like node.py: it travels with the run folder.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import NamedTuple

EXIT_DONE, EXIT_REQUEUE, EXIT_CONFIGURATION = 0, 75, 78
PORTS = range(20000, 32000)  # below the ephemeral range of Linux, 32768 to 60999 (ip(7))


def main(argv: list[str]) -> int:
    if argv[:1] == ["head"]:
        address = own_address(argv[2:])
        print(address, free_port(address, argv[1]))
        return 0
    run_dir, ident, code, failures, requeues, deadline_s = argv[1:]
    attempts = attempts_of(Path(run_dir), ident.partition(".")[0])
    agreed = next((a.code for a in attempts if a.ident == ident and a.code is not None), int(code))
    again, why = decide(agreed, attempts, int(failures), int(requeues), float(deadline_s))
    print(f"[batch] {why}", file=sys.stderr)
    print("again" if again else "end", agreed)
    return 0


class Attempt(NamedTuple):
    """One attempt: who claimed it, how it ended (None: cut off), when it was claimed."""

    ident: str
    code: int | None
    began: float


def own_address(peers: list[str]) -> str:
    """This node's address on the way to another node, by the first name that leads there.

    Nothing is sent: connecting a UDP socket only asks the kernel for the route. An address stays
    an address and is never turned into a name. Leaves with a message where only a loopback
    address is found, as where /etc/hosts gives a node's own name one.
    """
    if peers == ["localhost"]:
        return "127.0.0.1"
    for family, kind, _, _, target in (found for peer in peers for found in resolve(peer)):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(target)
            except OSError:
                continue
            address = str(probe.getsockname()[0])
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
    sys.exit(
        f"[batch] {socket.gethostname()}: no address that other nodes can reach was found on the "
        f"way to {' or '.join(peers)}. The name must resolve here, and not to a loopback address: "
        "look at /etc/hosts."
    )


Resolved = list[tuple[int, int, int, str, tuple[object, ...]]]


def resolve(name: str) -> Resolved:
    try:
        return list(socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM))
    except OSError:
        return []


def free_port(address: str, seed: str) -> int:
    """A port that is free on this node now, the same for the same job unless it is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    sys.exit(f"[batch] no free port among 500 between {PORTS[0]} and {PORTS[-1]} on {address}")


def attempts_of(run_dir: Path, job: str) -> list[Attempt]:
    """The attempts that this job has claimed, over all its restarts."""
    found = []
    for folder in (run_dir / "attempts").glob("[0-9]*"):
        ident = str(read_json(folder / "owner.json").get("job", ""))
        if ident.partition(".")[0] == job:
            code = read_json(folder / "end.json").get("code")
            began = (folder / "owner.json").stat().st_mtime
            found.append(Attempt(ident, code if isinstance(code, int) else None, began))
    return found


def read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def decide(
    code: int, attempts: list[Attempt], failures: int, requeues: int, deadline_s: float
) -> tuple[bool, str]:
    """Whether a job that ended with `code` is started again, and why.

    Args:
        attempts: of this job, the one that just ended among them. One without an exit code was
            cut off, by Slurm or with a lost node, and counts as a requeue.
        deadline_s: seconds after the first attempt from which no new one is started; 0 for none.
    """
    if code in (EXIT_DONE, EXIT_CONFIGURATION):
        return False, "finished" if code == EXIT_DONE else "a configuration error is never repeated"
    first = min((attempt.began for attempt in attempts), default=time.time())
    if deadline_s and time.time() - first > deadline_s:
        return False, f"the deadline of {deadline_s:g} s is over"
    num_requeues = sum(1 for attempt in attempts if attempt.code in (None, EXIT_REQUEUE))
    if code == EXIT_REQUEUE:
        return num_requeues <= requeues, f"requeue {num_requeues} of {requeues}"
    # A failure before an attempt could be claimed leaves no trace but Slurm's count of restarts.
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    num_failures = max(len(attempts) - num_requeues, restarts + 1 - num_requeues)
    return num_failures <= failures, f"failure {num_failures} of {failures} with code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
