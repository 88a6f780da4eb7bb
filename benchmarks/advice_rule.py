"""The rules by which advice is judged: what rounds show, where limits lie, what is a tie."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.bench.book import Row

# Between two peaks that are nearer than this there is no limit: both vary by 2 or 3 MiB in 100.
APART = 1.06
# Nearer medians are a tie, even where all rounds agree.
NOISE = 0.03
LEAST_SHARE = 0.9
LEAST_CELLS = 10


@dataclass(frozen=True)
class Rounds:
    """One strategy in all rounds.

    Args:
        times_s: a step of each round: its median.
        last: the row of the last round, with the planner's figures.
    """

    strategy: str
    times_s: tuple[float, ...]
    peak_bytes: int
    last: Row

    @classmethod
    def of(cls, rows: Sequence[Row], by_cpu: bool) -> Rounds:
        """Return what the rows of a strategy say; each has ended well.

        Args:
            by_cpu: by seconds of CPU of a step, in place of the clock.
        """
        seen = [row.measured for row in rows]
        times = tuple((one.cpu_s if by_cpu else one.step_s) or 0.0 for one in seen)
        peak_bytes = max(one.peak_bytes or 0 for one in seen)
        return cls(rows[0].cell.strategy, times, peak_bytes, rows[-1])

    @property
    def step_s(self) -> float:
        return statistics.median(self.times_s)

    def ties(self, slower: Rounds) -> bool:
        """Whether rounds of a slower strategy overlap these, or the medians are too near."""
        overlap = max(self.times_s) >= min(slower.times_s)
        return overlap or slower.step_s < self.step_s * (1 + NOISE)


@dataclass(frozen=True)
class Verdict:
    """One cell: a model on some nodes under a memory limit.

    Args:
        right: the fastest measured strategy that fits.
        tied: those that fit and cannot be told from it.
        advised: what `strategy: auto` takes; "nothing" where it says that nothing fits.
    """

    model: str
    nodes: int
    limit_bytes: int
    right: str
    step_s: float
    tied: tuple[str, ...]
    advised: str

    @property
    def word(self) -> str:
        """right, wrong or tie. Advice that is none of those that are tied is wrong."""
        if self.tied and self.advised in (self.right, *self.tied):
            return "tie"
        return "right" if self.advised == self.right else "wrong"


def limits(found: Sequence[Rounds]) -> list[int]:
    """Return a memory limit in the middle of each two peaks that are apart, and one above all."""
    peaks = sorted(one.peak_bytes for one in found)
    pairs = zip(peaks, [*peaks[1:], peaks[-1] * APART**2], strict=True)
    return [int((low * high) ** 0.5) for low, high in pairs if high > low * APART]


def fastest(found: Sequence[Rounds], limit_bytes: int) -> tuple[Rounds, tuple[str, ...]]:
    """Return the fastest that fits below a limit, and the names of those that tie with it."""
    fitting = [one for one in found if one.peak_bytes <= limit_bytes]
    first, *others = sorted(fitting, key=lambda one: one.step_s)
    return first, tuple(one.strategy for one in others if first.ties(one))


def score(verdicts: Sequence[Verdict]) -> tuple[int, int]:
    """Return how many are right, and how many are counted: all but ties."""
    words = [one.word for one in verdicts]
    return words.count("right"), len(words) - words.count("tie")


def often(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the strategies that are the right ones in at least two counted cells."""
    right = [one.right for one in verdicts if one.word != "tie"]
    yield from (name for name in dict.fromkeys(right) if right.count(name) >= 2)
