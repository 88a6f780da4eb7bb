"""Ranks that hang in one way or another, and node.py's part for ranks that have no node.py."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from models import Words
from runs import Run
from trainer import node, phase, samples

LONG_S = 600
GIVE_UP_S = 80.0
HOST = "node7"


class Hangs(Words):
    """Hangs in the given step, on one rank."""

    def __init__(self, how: str, step: int, rank: int) -> None:
        super().__init__()
        self.how = how if os.environ["RANK"] == str(rank) else ""
        self.step = step
        if self.how == "backward":
            self.embedding.weight.register_hook(self._in_backward)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if phase.current.step == self.step:
            self._hang()
        return super().forward(tokens, targets)

    def _hang(self) -> None:
        if self.how == ("forward" if self.training else "evaluation"):
            time.sleep(LONG_S)  # the hang itself
        elif self.how == "native":
            time.sleep(2)  # so long that the watchdog has seen this phase
            # Unlike CDLL it keeps the interpreter's lock; and a signal does not end it.
            ctypes.PyDLL(None).sem_wait(ctypes.create_string_buffer(64))
        elif self.how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(LONG_S)  # continued for its report, it has not gone on by then
        elif self.how == "slow":
            time.sleep(3)  # slow, and within the limit
        elif self.how == "slow evaluation" and not self.training:
            time.sleep(1.6)  # each batch for itself is within the limit

    def _in_backward(self, _gradient: Tensor) -> None:
        if phase.current == ("step", self.step):
            time.sleep(LONG_S)


def build(how: str, step: int, rank: int) -> Hangs:
    return Hangs(how, step, rank)


class WorkerHangs(samples.Windows):
    """The loader's worker of rank 1 never comes back with the fourth batch."""

    fetched = 0

    def __getitem__(self, indices: samples.Indices) -> torch.Tensor:
        if get_worker_info() is not None:
            self.fetched += 1
            if os.environ["RANK"] == "1" and self.fetched == 4:
                time.sleep(LONG_S)
        return super().__getitem__(indices)


def note_pid(run: Run, name: str, _step: int) -> None:
    """A listener by which NodeSide knows the ranks."""
    if name == "start":
        node.write_json(run.run_dir / f"pid-{os.environ['RANK']}", {"pid": os.getpid()})


class NodeSide(threading.Thread):
    """Does for ranks that listen with note_pid what node.py does when an attempt hangs."""

    def __init__(self, run: Run, num_ranks: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.run_dir, self.num_ranks = run.attempt_dir(), run.run_dir, num_ranks
        self.fault: tuple[int, str] | None = None
        self.deadline = time.monotonic() + GIVE_UP_S

    def run(self) -> None:
        pulses = node.Pulses()
        while not (self.folder / "hang").exists():
            if self._late():
                return
            if silent := pulses.silent(time.monotonic(), self.pids()):
                node.mark_as_hanging(self.folder, HOST, *silent)
        hang = node.Hang(self.folder, HOST, self.pids())
        while not hang.is_over(time.monotonic()) and not self._late():
            pass
        for pid in self.pids().values():
            node.kill(pid, signal.SIGKILL)
        self.fault = hang.fault()

    def pids(self) -> dict[int, int]:
        ranks = range(self.num_ranks)
        noted = {rank: node.read_json(self.run_dir / f"pid-{rank}") for rank in ranks}
        return {rank: said["pid"] for rank, said in noted.items() if said}

    def _late(self) -> bool:
        time.sleep(0.05)
        return time.monotonic() > self.deadline
