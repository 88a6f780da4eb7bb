"""Ranks that are forked from this process, which has imported torch, and what rank 0 measures."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

END_S = 60


def in_ranks(
    num_ranks: int,
    folder: str,
    use: Callable[..., object],
    *args: Any,
    attempt: int = 1,
    deadline_s: float,
) -> Any:
    """What use(*args) returns on rank 0; TimeoutError if that takes longer than deadline_s.

    Each rank has the launcher's environment of attempt `attempt` of a run in folder/run, one
    thread, and no standard output. Ranks leave at once: what libraries leave behind stays.
    """
    forking = multiprocessing.get_context("fork")
    pairs = [forking.Pipe() for _ in range(num_ranks)]
    ranks = [
        forking.Process(
            target=_rank_main, args=(rank, num_ranks, folder, attempt, there, use, args)
        )
        for rank, (_, there) in enumerate(pairs)
    ]
    for process in ranks:
        process.start()
    # Only now: forking while the store's thread works would copy its locks as they are.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for here, _ in pairs:
        here.send(store.port)
    if not pairs[0][0].poll(deadline_s):
        raise TimeoutError(f"rank 0 has not measured within {deadline_s:g} s")
    measured = pairs[0][0].recv()
    for process in ranks:
        process.join(END_S)
    return measured


def _rank_main(
    rank: int,
    num_ranks: int,
    folder: str,
    attempt: int,
    connection: Connection,
    use: Callable[..., object],
    args: tuple[Any, ...],
) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(connection.recv()), "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        "ORCHESTRATE_RUN_DIR": f"{folder}/run", "ORCHESTRATE_ATTEMPT": str(attempt),
        "ORCHESTRATE_CHECKPOINT_DIR": f"{folder}/run/checkpoints", "ORCHESTRATE_WORKDIR": folder,
    }  # fmt: skip
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # metrics lines go there too
    measured = use(*args)
    connection.send(measured)
    os._exit(0)
