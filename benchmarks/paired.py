"""Timing two commands against one another, in turn, on a machine that is shared and noisy."""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """Medians of one figure of two things, and the median of the ratios pair by pair.

    Args:
        a, b: medians, in seconds.
        ratio: median of a/b over the pairs.
        low, high: 95 % interval of that median, by bootstrap over the pairs.
    """

    a: float
    b: float
    ratio: float
    low: float
    high: float

    def row(self, what: str, limit: str) -> str:
        """One line of the README's table, times in milliseconds."""
        return (
            f"| {what} | {self.a * 1e3:.1f} ms | {self.b * 1e3:.1f} ms | "
            f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}) | {limit} |"
        )


def compare(a: Sequence[float], b: Sequence[float]) -> Pair:
    """Return the pair of `a` and `b`, measured in turn, in seconds. At least three pairs."""
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    low, high = median_interval(ratios)
    return Pair(statistics.median(a), statistics.median(b), statistics.median(ratios), low, high)


def median_interval(values: Sequence[float], rounds: int = 4000) -> tuple[float, float]:
    """Bounds of the 95 % interval of the median (percentile bootstrap, fixed seed)."""
    chance = random.Random(1)
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(rounds)
    )
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def time_commands(
    a: Sequence[str], b: Sequence[str], pairs: int, folder: Path
) -> tuple[list[float], list[float]]:
    """Wall seconds of the commands `a` and `b`, run in turn, after one warm-up each.

    The order within a pair changes from pair to pair. Raises CalledProcessError if one fails.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, pairs):
        order = ((0, a), (1, b)) if number % 2 else ((1, b), (0, a))
        for which, command in order:
            seconds = _wall(command, folder)
            if number >= 0:
                times[which].append(seconds)
    return times


def _wall(command: Sequence[str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def machine() -> str:
    """What the figures were taken on, without a name."""
    load = os.getloadavg()[0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return f"{os.cpu_count()} cores, load {load:.1f} at the end, largest child {peak} MiB"
