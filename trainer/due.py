"""When a checkpoint by time is due: every so many seconds, or as failures make it worth."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from trainer.config import CheckpointConfig

FIRST_S = 300.0  # until the cost of a checkpoint is known
LEAST_S = 30.0  # a cost near 0 would ask for checkpoints without end
NUM_COSTS = 5  # checkpoints whose mean cost counts, so that one slow one does not


class Due:
    """The time of the next checkpoint; never under checkpoint.every_steps, which needs no clock.

    Seconds count from the end of the last checkpoint, so that slow ones leave time to train.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._clock = config, clock
        self._costs_s: deque[float] = deque(maxlen=NUM_COSTS)
        self._next = clock() + self.interval_s()

    def now(self) -> bool:
        """Whether a checkpoint is due."""
        return self._clock() >= self._next

    def saved(self, cost_s: float) -> None:
        """A checkpoint has been made, for whatever reason; training stood still for cost_s."""
        self._costs_s.append(cost_s)
        self._next = self._clock() + self.interval_s()

    def interval_s(self) -> float:
        """Seconds from the end of one checkpoint to the beginning of the next."""
        if self._config.every_s is not None:
            return self._config.every_s
        if self._config.mtbf_s is not None:
            return self._best_interval_s(self._config.mtbf_s)
        return math.inf

    def _best_interval_s(self, mtbf_s: float) -> float:
        """sqrt(2 * cost * MTBF): J. W. Young, "A first order approximation to the optimum
        checkpoint interval", CACM 17 (1974); no longer than the MTBF, where that ends to hold."""
        if not self._costs_s:
            return min(FIRST_S, mtbf_s)
        cost_s = sum(self._costs_s) / len(self._costs_s)
        return min(max(LEAST_S, math.sqrt(2 * cost_s * mtbf_s)), mtbf_s)
