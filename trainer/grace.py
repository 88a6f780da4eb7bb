"""How long a stop takes, by the measured time of checkpoints, told to launcher and user."""

from __future__ import annotations

import json
import math
import sys
from collections import deque

from trainer.contract import Contract
from trainer.metrics import Metrics

NUM_SAVES = 5  # recent checkpoints of which the slowest counts


class Grace:
    """Keeps grace.json in the run folder; on other ranks than 0 it does nothing.

    It says twice the slowest recent checkpoint, since one may be under way when a stop is asked
    for, and two steps. limit_s: timeouts.shutdown.
    """

    def __init__(self, contract: Contract, limit_s: float, metrics: Metrics) -> None:
        self._contract, self._limit_s, self._metrics = contract, limit_s, metrics
        self._saves_s: deque[float] = deque(maxlen=NUM_SAVES)
        self._told_s = _read(contract)
        self._warned = False

    def saved(self, step: int, save_s: float, step_s: float) -> None:
        """A checkpoint of `step` took save_s until it was published, and a step takes step_s."""
        if self._contract.rank != 0:
            return
        self._saves_s.append(save_s)
        needed_s = round(2 * max(self._saves_s) + 2 * step_s, 3)
        if abs(needed_s - self._told_s) > self._told_s / 10:
            self._tell(needed_s)
        if needed_s > self._limit_s and not self._warned:
            self._warn(step, needed_s)

    def _tell(self, needed_s: float) -> None:
        try:
            self._contract.write_grace(needed_s)
        except OSError as error:  # the checkpoint is written all the same
            print(f"trainer: time to stop not told: {error}", file=sys.stderr)
        self._told_s = needed_s

    def _warn(self, step: int, needed_s: float) -> None:
        self._warned = True
        print(
            f"trainer: timeouts.shutdown is {self._limit_s:g} s, but a stop may take"
            f" {needed_s:.1f} s, by the time of the last checkpoints and steps: set it to"
            f" {math.ceil(needed_s)}s or more",
            file=sys.stderr,
        )
        self._metrics.event("slow_save", step, seconds=needed_s, limit=self._limit_s)


def _read(contract: Contract) -> float:
    """What an earlier attempt told, 0 if it told nothing."""
    try:
        return float(json.loads(contract.grace_file.read_bytes())["seconds"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0
