"""Stopping at a step that all ranks agree on, without a collective of its own.

A rank that wants to stop writes "stop after s" to the rendezvous store before it enters the
collectives of step s. No rank can finish s before all have entered it, so every rank that reads
the key after s finds it. All read it after the same steps: each one, or every k-th of short ones.
"""

from __future__ import annotations

import os
import signal
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.distributed_c10d import Store

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STOP_KEY = "orchestrate/stop_after"
READING_S = 0.02  # a look-up in the store is 0.02 ms alone, and ten times that on busy cores
MAX_STEPS_UNREAD = 100


class StopProtocol:
    """One rank's part in the agreement.

    store: the rendezvous store, shared by all ranks. drain: the file that asks for the stop.
    device: where the collectives run; a GPU runs behind the host, so there a stop takes effect one
    step later and the host waits for the step before the last.
    """

    def __init__(self, store: Store, drain: Path, device: torch.device) -> None:
        self._store = store
        self._drain = os.fspath(drain)
        self._signalled = False
        self._announced = False
        self._lag = 1 if device.type == "cuda" else 0
        self._every = 1  # steps from one reading of the key to the next, the same on all ranks
        self._fence: Callable[[], None] | None = None

    def handle_signals(self) -> None:
        """From now on SIGTERM and SIGUSR1 ask for a stop instead of ending the process."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: types.FrameType | None) -> None:
        self._signalled = True

    def requested(self) -> bool:
        """Whether this rank has seen a signal or the drain file."""
        return self._signalled or os.path.exists(self._drain)

    def before_step(self, step: int) -> None:
        """Announce a stop, if one is requested, before the collectives of `step`."""
        if not self._announced and self.requested():
            self._store.compare_set(STOP_KEY, "", str(step + self._lag))
            self._announced = True

    def set_pace(self, step_s: float) -> None:
        """Read the key about every READING_S instead of each step, where steps are shorter.

        step_s: seconds of one step, exactly the same number on every rank, after the same step.
        """
        self._every = max(1, min(MAX_STEPS_UNREAD, int(READING_S / max(step_s, 1e-9))))

    def after_step(self, step: int) -> bool:
        """Whether all ranks stop now that `step` is done; the same answer on every rank."""
        if self._lag:
            self._wait_for_step_before()
        if step % self._every or not self._store.check([STOP_KEY]):
            return False
        return step >= int(self._store.get(STOP_KEY))

    def _wait_for_step_before(self) -> None:
        if self._fence is not None:
            self._fence()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._fence = event.synchronize
