"""What all ranks do after the same step, stop or save, agreed on without a collective of its own.

A rank that wants it writes "after step s" to the rendezvous store before it enters the collectives
of s. No rank can finish s before all have entered it, so every rank that looks after s finds it.
All look after the same steps: each one, or every k-th of short ones.

The key has a number: the saves that were agreed on before, so every rank that has done the same
steps looks for the same key. Whoever writes it first decides what it says; who comes later waits
for the next number. So a save by time needs no look-up besides that for a stop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from trainer import signals
from trainer.devices import module_of

Agreed = Literal["stop", "save"]
KEY = "orchestrate/after"
READING_S = 0.02  # a look-up in the store is 0.02 ms alone, and ten times that on busy cores
MAX_STEPS_UNREAD = 100


class Drained(Exception):
    """A rank was asked to stop before it trained; `step` steps were restored, 0 if none yet."""

    def __init__(self, step: int) -> None:
        super().__init__("asked to stop before the first step")
        self.step = step


class StopProtocol:
    """One rank's part in the agreement.

    store: the rendezvous store, shared by all ranks. drain: the file that asks for the stop, as
    signals do. device: where the collectives run; a GPU runs behind the host, so there what is
    asked for takes effect one step later and the host waits for the step before the last.
    """

    def __init__(self, store: Store, drain: Path, device: torch.device) -> None:
        self.store = store
        self._drain = os.fspath(drain)
        self._device = device
        self._saves = 0  # agreed on so far, the same on all ranks after the same step
        self._is_taken = False  # this rank knows that the key is written
        self._lag = 0 if device.type == "cpu" else 1
        self._every = 1  # steps from one reading of the key to the next, the same on all ranks
        self._fence: Callable[[], None] | None = None
        self.step_s = 0.0  # of the last steps that were reported

    def requested(self) -> bool:
        """Whether this rank has seen a signal or the drain file."""
        return signals.received or os.path.exists(self._drain)

    def leave_if_asked(self, step: int = 0) -> None:
        """Raise Drained(step) on all ranks if one of them is asked to stop. A collective."""
        if any_rank(self.requested(), self._device):
            raise Drained(step)

    def before_step(self, step: int, save_due: bool = False) -> None:
        """Ask for a stop, or for a save if save_due, before the collectives of `step`."""
        if self._is_taken:
            return
        wanted = "stop" if self.requested() else "save" if save_due else None
        if wanted is not None:
            self.store.compare_set(self._key, "", f"{wanted} {step + self._lag}")
            self._is_taken = True

    def set_pace(self, step_s: float) -> None:
        """Read the key about every READING_S instead of each step, where steps are shorter.

        step_s: seconds of one step, exactly the same number on every rank, after the same step.
        """
        self.step_s = step_s
        self._every = max(1, min(MAX_STEPS_UNREAD, int(READING_S / max(step_s, 1e-9))))

    def after_step(self, step: int) -> Agreed | None:
        """What all ranks do now that `step` is done; the same answer on every rank."""
        if self._lag:
            self._wait_for_step_before()
        if step % self._every or not self.store.check([self._key]):
            return None
        agreed, after = self.store.get(self._key).decode().split()
        if step < int(after):
            return None
        if agreed == "stop":
            return "stop"
        self._saves, self._is_taken = self._saves + 1, False
        return "save"

    @property
    def _key(self) -> str:
        return f"{KEY}/{self._saves}"

    def _wait_for_step_before(self) -> None:
        if self._fence is not None:
            self._fence()
        event = module_of(self._device).Event()
        event.record()
        self._fence = event.synchronize


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set on any rank, the same answer on every rank. A collective."""
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags.item())
