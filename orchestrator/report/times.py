"""When attempts ran and steps ended, by the ledger, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.goodput import Interval
from orchestrator.report.series import Series

MAX_ATTEMPTS = 10_000  # whose times are kept


@dataclass
class Times:
    """spans: from when to when each attempt was heard of; ends: when steps ended. In seconds since
    1970."""

    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    ends: Series = field(default_factory=Series)

    @classmethod
    def read(cls, intervals: Iterable[Interval]) -> Times:
        """What all intervals tell, in their order: a step that was made again ended when it did
        so last."""
        times = cls()
        for interval in intervals:
            times._add(interval)
        return times

    def _add(self, interval: Interval) -> None:
        known = self.spans.get(interval.attempt)
        first, last = known or (interval.begin, interval.end)
        if known or len(self.spans) < MAX_ATTEMPTS:
            own = (min(first, interval.begin), max(last, interval.end))
            self.spans[interval.attempt] = own
        steps = interval.steps
        if steps:
            each_s = (interval.end - interval.begin) / len(steps)
            self.ends.shorten(steps.start - 1)
            self.ends.add(steps.start, interval.begin + each_s)
            if len(steps) > 1:
                self.ends.add(steps.stop - 1, interval.end)
