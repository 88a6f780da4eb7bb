"""How long each part of an attempt may take, how long a rank may show no progress in it, and how
long the others wait for it.

Who knows more speaks first: a writer that finds itself late, then the watchdog, which names the
rank that the others wait for, and then, some time later, a collective that fails.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trainer import phase
from trainer.config import TrainerConfig
from trainer.phase import Phase

if TYPE_CHECKING:  # torch takes a second to import
    from torch.distributed import ProcessGroup

MOST_WAIT_S = 30 * 86400.0  # of a collective, so that no clock of C++ overflows
MARGIN_S = 60.0  # for the watchdogs to report before a collective fails
SAVE_GRACE_S = 2.0  # for the writer of a checkpoint that is late to say so
SAVING = ("save", "publish", "prune")


class Limit(NamedTuple):
    """A number of seconds, and the key of the job file that it comes from."""

    seconds: float
    key: str


class Stage(NamedTuple):
    """A part of an attempt. quiet: longest time without a sign of progress; whole: from its begin
    to its end; None: no such limit. One of them is given."""

    quiet: Limit | None = None
    whole: Limit | None = None

    @property
    def shortest_s(self) -> float:
        """Seconds after which one of the limits can be exceeded."""
        return min(limit.seconds for limit in (self.quiet, self.whole) if limit is not None)

    @property
    def wait_s(self) -> float:
        """Seconds that another rank may let wait for itself in a collective."""
        longest = self.quiet or self.whole
        assert longest is not None
        return longest.seconds + MARGIN_S

    def exceeded(self, quiet_s: float, whole_s: float) -> Limit | None:
        """The limit that is used up after these seconds without progress, and in all."""
        if self.whole is not None and whole_s >= self.whole.seconds:
            return self.whole
        return self.quiet if self.quiet is not None and quiet_s >= self.quiet.seconds else None


class Limits:
    """The stages of an attempt with the limits of its configuration."""

    def __init__(self, config: TrainerConfig) -> None:
        step = Limit(config.step_timeout_s, "timeouts.step")
        first = Limit(config.first_step_timeout_s, "timeouts.first_step")
        save = Limit(config.checkpoint.timeout_s + SAVE_GRACE_S, "timeouts.checkpoint")
        whole = config.evaluation_timeout_s
        evaluation = None if whole is None else Limit(whole, "timeouts.evaluation")
        slowest = max(step, first)
        self.rendezvous = Stage(whole=Limit(config.rendezvous_timeout_s, "timeouts.rendezvous"))
        self.load = Stage(whole=Limit(config.load_timeout_s, "timeouts.load"))
        self.first_step, self.step = Stage(whole=first), Stage(quiet=step)
        self.first_evaluation = Stage(slowest, evaluation)
        # An evaluation is compiled for itself, at whatever step the first one is.
        self.evaluation = Stage(slowest if config.compile else step, evaluation)
        self.checkpoint = Stage(quiet=save)
        self.exit = Stage(quiet=max(step, save))  # the others wait here for the last checkpoint

    def of(self, current: Phase, first_step: int | None) -> Stage:
        """The stage of a phase; first_step: steps done before this attempt's first, None until
        that begins."""
        in_first = first_step is None or current.step <= first_step
        if current.name in ("start", "rendezvous"):
            return self.rendezvous
        if current.name in ("load", "restore"):
            return self.load
        if current.name == "evaluation":
            return self.first_evaluation if in_first else self.evaluation
        if current.name in SAVING:
            return self.checkpoint
        if current.name == "exit":
            return self.exit
        return self.first_step if in_first else self.step

    def totals_wait_s(self, in_first: bool, num_batches: int) -> float:
        """How long a rank that is through an evaluation waits for one that is at its first batch.

        num_batches: of the rank with the most.
        """
        stage = self.first_evaluation if in_first else self.evaluation
        assert stage.quiet is not None
        whole_s = stage.quiet.seconds * max(1, num_batches)
        longest_s = whole_s if stage.whole is None else min(whole_s, stage.whole.seconds)
        return min(longest_s + MARGIN_S, MOST_WAIT_S)

    @property
    def longest_s(self) -> float:
        """The longest wait of another rank in a collective, in any stage."""
        stages: list[Stage] = list(vars(self).values())
        return max(stage.wait_s for stage in stages)


def batch_wait_s(config: TrainerConfig) -> float:
    """Longest wait in seconds for a worker of the loader, in the first step as in others."""
    limits = Limits(config)
    return max(limits.first_step.wait_s, limits.step.wait_s)


def group_timeout_s(config: TrainerConfig) -> float:
    """Longest wait in seconds for the other ranks until the first step is over."""
    return Limits(config).longest_s


class Patience:
    """How long the collectives of the training wait for other ranks: group_timeout_s until the
    first step is over, and then as long as a rank may take for what all are at.

    groups: those of the model, beside that of all ranks. That of checkpoints keeps its own time.
    """

    def __init__(self, config: TrainerConfig, groups: Sequence[ProcessGroup]) -> None:
        from torch.distributed import group

        assert group.WORLD is not None
        self._limits, self._groups = Limits(config), [group.WORLD, *groups]
        self._wait_s = self._limits.longest_s

    def begin(self, name: str, step: int) -> None:
        """The phase `name` begins after `step` steps: collectives made from now on wait so long."""
        if _in_first(step):
            self._wait(self._limits.longest_s)
        else:
            self._wait(self._limits.of(Phase(name, step), phase.first_step).wait_s)

    def begin_totals(self, step: int, num_batches: int) -> None:
        """This rank is through its part of an evaluation; see Limits.totals_wait_s."""
        self._wait(self._limits.totals_wait_s(_in_first(step), num_batches))

    def _wait(self, wait_s: float) -> None:
        if wait_s == self._wait_s:
            return
        self._wait_s = wait_s
        for group in self._groups:
            set_timeout(group, wait_s)


def _in_first(step: int) -> bool:
    return phase.first_step is None or step <= phase.first_step


def set_timeout(group: ProcessGroup, timeout_s: float) -> None:
    """Let collectives of a group that are made from now on fail after `timeout_s` seconds.

    torch 2.13 has the method and no page about it.
    """
    group.set_timeout(datetime.timedelta(seconds=timeout_s))
