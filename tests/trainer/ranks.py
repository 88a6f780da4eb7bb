"""Real ranks for tests: forked from this process, which has imported torch, and no torchrun.

The parent hosts the store, as torchrun's agent does, on a port that the system picks. The parent
must never run a backward pass: autograd's threads do not survive a fork.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step: once here, not in every rank
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import trainer.loop  # noqa: F401  # as above

# A rank that is this late shows where it is before the parent kills it.
STACKS_AFTER_S = 80
CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its result, or the traceback of its exception, or neither if killed."""

    value: Any
    error: str | None
    exit_code: int | None


Fn = Callable[..., Any]


def run_ranks(num_ranks: int, fn: Fn, *args: Any, timeout_s: float = 90) -> list[Any]:
    """What fn(*args) returned on each of `num_ranks` ranks; AssertionError if one did not."""
    ended = end_ranks(num_ranks, fn, *args, timeout_s=timeout_s)
    errors = [f"rank {rank}: {end.error or end}" for rank, end in enumerate(ended)
              if end.error or end.exit_code]  # fmt: skip
    if errors:
        raise AssertionError("\n".join(errors))
    return [end.value for end in ended]


def end_ranks(num_ranks: int, fn: Fn, *args: Any, timeout_s: float = 90) -> list[Ended]:
    """Run fn(*args) on `num_ranks` ranks and wait at most timeout_s; whoever is late is killed."""
    ranks = Ranks(num_ranks, fn, *args)
    ranks.begin()
    return ranks.collect(timeout_s)


class Ranks:
    """`num_ranks` processes, forked now, that run fn(*args) from begin() on; collect() must follow.

    Fork all that are to live at the same time before the first begin(): forking while a store's
    thread works would copy its locks as they are.
    """

    def __init__(self, num_ranks: int, fn: Fn, *args: Any) -> None:
        self._started = [_start(rank, num_ranks, fn, args) for rank in range(num_ranks)]
        self._store: TCPStore | None = None

    def begin(self) -> None:
        """Make the store and let the ranks go."""
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for _, connection in self._started:
            connection.send(self._store.port)

    def terminate_after(self, rank: int, timeout_s: float = 90) -> None:
        """Send SIGTERM to all others once `rank` has ended, as torchrun does."""
        self._started[rank][0].join(timeout_s)
        for process, _ in self._started:
            process.terminate()

    def collect(self, timeout_s: float = 90) -> list[Ended]:
        """How each rank ended; whoever is late is killed."""
        deadline = time.monotonic() + timeout_s
        try:
            return [
                _collect(process, connection, deadline) for process, connection in self._started
            ]
        finally:
            for process, _ in self._started:
                if process.is_alive():
                    process.kill()
                process.join()
            self._store = None


def grouped(fn: Fn, *args: Any) -> Any:
    """What fn(*args) returns on this rank, with the default process group up; for run_ranks."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    value = fn(*args)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return value


def _start(
    rank: int, num_ranks: int, fn: Fn, args: tuple[Any, ...]
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_run, args=(there, environ, fn, args))
    process.start()
    there.close()
    return process, here


def _run(connection: Connection, environ: dict[str, str], fn: Fn, args: Any) -> None:
    os.environ.update(environ)
    os.environ["MASTER_PORT"] = str(connection.recv())
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(STACKS_AFTER_S)
    value, error = None, None
    try:
        value = fn(*args)
    except BaseException:  # the parent shows it
        error = traceback.format_exc()
    connection.send((value, error))


def _collect(
    process: multiprocessing.process.BaseProcess, connection: Connection, deadline: float
) -> Ended:
    value, error = None, None
    try:
        if connection.poll(max(0.0, deadline - time.monotonic())):
            value, error = connection.recv()
        else:
            error = "did not end in time"
            process.kill()
    except EOFError:
        pass  # killed: the exit code says by what
    process.join(max(0.0, deadline - time.monotonic()) + 5)
    return Ended(value, error, process.exitcode)
