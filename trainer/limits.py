"""How long a rank may show no progress, and how long the others wait for it."""

from __future__ import annotations

from trainer.config import TrainerConfig
from trainer.phase import Phase

START_S = 1800.0  # for starting and loading: large models come from slow disks
# Who knows more speaks first: of a checkpoint that is late the saver, before the watchdog; of other
# hangs the watchdog, before a collective fails.
MARGIN_S = 60.0


class Limits:
    """Seconds without progress for each phase, and what is allowed to compile the first step."""

    def __init__(self, config: TrainerConfig) -> None:
        step_s, save_s = config.step_timeout_s, config.checkpoint.timeout_s + MARGIN_S
        start_s = max(step_s, START_S)
        self._first_s = start_s if config.compile else 0.0
        self._of = {
            **dict.fromkeys(("start", "load", "restore"), start_s),
            **dict.fromkeys(("data", "step", "evaluation"), step_s),
            **dict.fromkeys(("save", "publish", "prune"), save_s),
            "exit": max(step_s, save_s),  # the others wait here for the last checkpoint
        }
        self.longest_s = max(self._of.values())

    def of(self, current: Phase, first_step: int) -> float:
        """Seconds that `current` may take; first_step: steps done before this attempt's first."""
        limit_s = self._of.get(current.name, self.longest_s)
        # An evaluation is compiled for itself, at whatever step the first one is.
        may_compile = current.step <= first_step or current.name == "evaluation"
        return max(limit_s, self._first_s) if may_compile else limit_s


def group_timeout_s(config: TrainerConfig) -> float:
    """Longest wait for the other ranks in a collective, and for a worker of the loader."""
    return Limits(config).longest_s + MARGIN_S
