"""Stands in for torchrun where its 3 s of imports are not what is tested: same options, same ways.

Like torchrun it starts each rank in a session of its own, ends all ranks when one fails, passes a
SIGTERM on and then kills after --shutdown-timeout, and leaves with 1 for every failure.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from types import FrameType

KILL_AFTER_S = 120.0  # no test may leave this running


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("nnodes", "nproc-per-node", "node-rank", "master-port", "shutdown-timeout"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("rdzv-backend", "rdzv-id", "master-addr", "max-restarts", "log-dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _on_term)
    ranks = [_start(args, local) for local in range(args.nproc_per_node)]
    deadline = time.monotonic() + KILL_AFTER_S
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
    except KeyboardInterrupt:
        _end(ranks, args.shutdown_timeout)
        return 1
    failed = any(rank.poll() != 0 for rank in ranks)
    _end(ranks, args.shutdown_timeout)
    return int(failed)


def _on_term(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _start(args: argparse.Namespace, local: int) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": args.node_rank * args.nproc_per_node + local,
        "LOCAL_RANK": local,
        "GROUP_RANK": args.node_rank,
        "WORLD_SIZE": args.nnodes * args.nproc_per_node,
        "LOCAL_WORLD_SIZE": args.nproc_per_node,
        "MASTER_ADDR": args.master_addr,
        "MASTER_PORT": args.master_port,
    }
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(args.program, env=environment, start_new_session=True)


def _end(ranks: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + timeout_s
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.02)
    for rank in ranks:
        rank.kill()
        rank.wait()


if __name__ == "__main__":
    sys.exit(main())
