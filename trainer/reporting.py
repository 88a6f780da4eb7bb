"""What the ranks tell of the steps they made: one collective for many steps, a metrics line for
each interval of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import TrainerConfig
from trainer.contract import Contract
from trainer.metrics import Clock, Metrics, peak_memory_bytes, utilization
from trainer.nonfinite import Guard, Verdict, diverged, judge, limit_of
from trainer.parallelized import Parallelized
from trainer.state import Progress

# Losses are kept on the device until they are reported, and one metrics line holds them all.
MAX_LOSSES = 1000
# Short steps are reported together: a sum over ranks takes a millisecond, which at each tenth step
# of a few milliseconds would show.
REPORT_S = 0.2


class Interval(NamedTuple):
    """Some steps, the last of them `step`, and what this rank knows of them by itself."""

    step: int
    num_steps: int
    training_s: float
    shares: dict[str, float]
    lr: float


class Reporter:
    """One rank's part in the reports.

    samples_per_step: of all ranks together.
    """

    def __init__(
        self,
        config: TrainerConfig,
        contract: Contract,
        parallel: Parallelized,
        guard: Guard,
        metrics: Metrics,
        samples_per_step: int,
    ) -> None:
        self._config, self._contract, self._parallel = config, contract, parallel
        self._guard, self._metrics = guard, metrics
        self._tokens_per_step = samples_per_step * config.model.context
        self._losses: list[Tensor] = []  # of the steps since the last report, on the device
        self._intervals: list[Interval] = []
        self._num_open = 0  # steps since the last interval
        self._at_once = 1  # intervals of a report, the same number on all ranks

    def add(self, loss: Tensor, step: int) -> bool:
        """Take the loss of a step that was made; whether an interval ends with it."""
        self._losses.append(loss)
        self._num_open += 1
        return step % self._config.logging.every == 0 or self._num_open == MAX_LOSSES

    def end_interval(self, step: int, clock: Clock, lr: float) -> bool:
        """End an interval, unless no step is open; whether a report is due."""
        if self._num_open:
            training_s, shares = clock.read()
            self._intervals.append(Interval(step, self._num_open, training_s, shares, lr))
            self._num_open = 0
        return len(self._intervals) >= self._at_once

    def report(self, progress: Progress) -> float | None:
        """Write the lines of the intervals that have ended; a collective if there are any.

        Returns the mean seconds of a step, the same number on all ranks; None without a step.
        Raises TrainingDiverged, on all ranks, for what is no number and not borne.
        """
        if not self._intervals:
            return None
        losses, step_s = self._sum()
        norms = self._guard.read()
        verdict = self._judge(losses, norms, progress)
        first = 0
        for interval, seconds in zip(self._intervals, step_s, strict=True):
            last = first + interval.num_steps
            if verdict.fault is None or interval.step < verdict.fault.step:
                self._line(interval, losses[first:last], norms[last - 1], seconds)
            first = last
        if verdict.fault is not None:
            own = self._losses[verdict.fault.step - progress.step - 1]
            raise diverged(verdict.fault, own.item())
        self._losses.clear()
        self._intervals.clear()
        self._pace(step_s[-1])
        return step_s[-1]

    def _sum(self) -> tuple[list[float], list[float]]:
        """Means over ranks: the loss of each step, and the seconds of a step in each interval.

        Summed in fp64, which is exact for numbers of fp32: in fp32 the order of the sum, and so the
        last digit of a step's loss, would depend on which other steps are in the report.
        """
        seconds = [interval.training_s / interval.num_steps for interval in self._intervals]
        own_s = torch.tensor(seconds, device=self._losses[0].device)
        sums = torch.cat([torch.stack(self._losses).double(), own_s.double()])
        dist.all_reduce(sums)
        means = (sums / self._contract.world_size).float().tolist()
        return means[: len(self._losses)], means[len(self._losses) :]

    def _judge(
        self, losses: Sequence[float], norms: Sequence[float], progress: Progress
    ) -> Verdict:
        """The verdict on the steps, with those that were skipped told of."""
        first = progress.step - len(losses) + 1
        limit = limit_of(self._config)
        verdict = judge(first, norms, losses, progress.skipped_in_a_row, limit)
        progress.skipped_in_a_row = verdict.in_a_row
        for step in verdict.skipped:
            progress.skipped += 1
            if self._parallel.scaler is None:  # it makes some steps overflow, to find its scale
                self._metrics.event("skipped", step, total=progress.skipped)
        return verdict

    def _pace(self, step_s: float) -> None:
        every = self._config.logging.every
        most = max(1, MAX_LOSSES // every)
        self._at_once = max(1, min(most, int(REPORT_S / max(every * step_s, 1e-9))))

    def _line(
        self, interval: Interval, losses: Sequence[float], norm: float, step_s: float
    ) -> None:
        tokens_per_s = interval.num_steps * self._tokens_per_step / interval.training_s
        self._metrics.line(
            interval.step,
            loss=losses[-1],
            losses=losses,
            lr=interval.lr,
            grad_norm=norm,
            step_s=round(step_s, 6),
            tokens_per_s=round(tokens_per_s, 1),
            mfu=self._utilization(tokens_per_s),
            peak_memory_bytes=peak_memory_bytes(self._parallel.device),
            time_shares=interval.shares,
        )

    def _utilization(self, tokens_per_s: float) -> float | None:
        flops_per_token = self._parallel.outline.flops_per_token
        if flops_per_token is None:
            return None
        per_rank = tokens_per_s * flops_per_token / self._contract.world_size
        return utilization(per_rank, self._parallel.device)
