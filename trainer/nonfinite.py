"""A step whose gradient is no number: never applied to the weights, and never saved.

The norm of the global gradient, which all ranks have, tells it before the optimizer's step. It is
not read then, since on a GPU the host would wait for it at every step: the optimizer skips the step
on the device, and the host learns of it with the next report, which comes before each save.

A skipped step leaves weights and moments as they were, and counts as a step: its samples are taken
and the learning rate goes on.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import TrainerConfig
from trainer.contract import ConfigurationError

# The scale of fp16 halves at each such step, and starts at 2^16 (precision.py). After this many in
# a row it is far below 1, and what overflows is not its doing.
FP16_LIMIT = 32


class TrainingDiverged(ConfigurationError):
    """A loss or a gradient is no number; nothing of it was saved.

    A repetition would come to the same numbers.
    """


@dataclass(frozen=True)
class Fault:
    """What ends the training: `what` of `step` is `value`, after so many skipped steps."""

    step: int
    what: str
    value: float
    skipped_before: int = 0


class Guard:
    """Has the optimizer skip each step whose gradient norm is no number, and keeps the norms.

    optimizer: its fused step reads the attribute found_inf, by which torch's own scaler tells it to
    skip (torch.amp.GradScaler.step).
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._norms: list[Tensor] = []

    def before_step(self, norm: Tensor) -> None:
        """norm: of the global gradient before clipping, a scalar, the same on all ranks."""
        self._norms.append(norm)
        is_number = norm.lt(math.inf)
        self._optimizer.found_inf = is_number.logical_not().float()  # type: ignore[attr-defined]

    def read(self) -> list[float]:
        """The norms of the steps since the last reading."""
        if not self._norms:
            return []
        norms: list[float] = torch.stack(self._norms).tolist()
        self._norms.clear()
        return norms


def limit_of(config: TrainerConfig) -> int:
    """How many skipped steps in a row are borne."""
    own = config.nonfinite.limit if config.nonfinite.policy == "skip" else 0
    return max(own, FP16_LIMIT) if config.parallelism.precision == "fp16" else own


@dataclass(frozen=True)
class Verdict:
    """Of some steps: which were skipped, how many in a row at the end, and what ends it all."""

    skipped: list[int]
    in_a_row: int
    fault: Fault | None = None


def judge(
    first_step: int, norms: Sequence[float], losses: Sequence[float], in_a_row: int, limit: int
) -> Verdict:
    """Judge the steps from `first_step` on by their gradient norms and losses.

    in_a_row: steps skipped right before them. limit: as many skipped in a row are borne. A loss
    that is no number under a gradient that is one ends the training too: the step was made.
    """
    skipped: list[int] = []
    for step, (norm, loss) in enumerate(zip(norms, losses, strict=True), first_step):
        if math.isfinite(norm):
            in_a_row = 0
            if not math.isfinite(loss):
                return Verdict(skipped, in_a_row, Fault(step, "loss", loss))
        elif in_a_row == limit:
            return Verdict(skipped, in_a_row, Fault(step, "gradient norm", norm, in_a_row))
        else:
            in_a_row += 1
            skipped.append(step)
    return Verdict(skipped, in_a_row)


def diverged(fault: Fault, own_loss: float | None = None) -> TrainingDiverged:
    """The error to raise on all ranks; a collective where `own_loss` is given.

    own_loss: of this rank in the step of the fault, to find the ranks where it began.
    """
    after = f", after {fault.skipped_before} skipped in a row" if fault.skipped_before else ""
    origin = "" if own_loss is None else f". {_origin(own_loss)}"
    return TrainingDiverged(
        "lower train.optimizer.lr, lengthen train.schedule.warmup_steps or look at the data:"
        f" training diverged, the {fault.what} of step {fault.step} is {fault.value}{after}."
        f" It was not saved{origin}"
    )


def _origin(own_loss: float) -> str:
    told: list[tuple[float, str]] = [(0.0, "")] * dist.get_world_size()
    dist.all_gather_object(told, (own_loss, socket.gethostname()))
    bad = [
        f"rank {rank} ({host}): {loss}"
        for rank, (loss, host) in enumerate(told)
        if not math.isfinite(loss)
    ]
    if not bad:
        return "No rank's own loss was: the gradient overflowed"
    return "Ranks whose own loss was the first that is no number: " + ", ".join(bad)
