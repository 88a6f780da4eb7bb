"""What a machine reaches, out of the step times and peaks of short runs: the profile's `hardware`.

A step is taken for a sum: operations by a speed, bytes of the update by a bandwidth, sharded units
by an overhead, messages by a latency, and bytes sent by a bandwidth, with nothing overlapped. The
unknown factors are those with the least relative errors (least squares, none below zero). Where
runs do not tell two of them apart, both get a share: see EVENLY.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.pace import UPDATE_BYTES, recomputation
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic

ROUNDS = 20_000  # of a descent by one factor at a time; some 0.5 s
ENOUGH = 1e-12  # of a change in a round, relative
# Weight of the wish that all parts be small, beside the errors: steps vary by some 5 %, and a part
# is about half of a step, so (0.05 / 0.5) ** 2 for some ten runs together. Without it one of two
# parts that grow together would get all, and the other none.
EVENLY = 0.001
SHOWN = 0.01  # of a step: where the update takes less in all runs, they do not show how fast it is
NONE_S = 1e-9  # a factor that the runs show nothing of is printed as so short a time
MOST_PER_S = 999_999e9  # or so high a rate

NAMES = (
    "computation", "update", "unit", "inside message", "inside byte", "between message",
    "between byte",
)  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """One run.

    Args:
        peak_bytes: None where it is not known.
        scatter_rounds: as Hardware has it.
    """

    setting: Setting
    outline: Outline
    step_s: float
    peak_bytes: int | None = None
    scatter_rounds: int = 1


@dataclass(frozen=True)
class Fit:
    """What was found.

    Args:
        seconds: by name (see NAMES): of one operation, byte, unit or message; without what the
            runs do not show.
        context_bytes: what a process holds beside what the planner knows of.
        errors: relative, of each observation's step time.
    """

    precision: str
    seconds: dict[str, float]
    context_bytes: int
    errors: tuple[float, ...]

    @property
    def yaml(self) -> str:
        """The profile's lines."""
        lines = [
            "hardware:",
            f"  peak: {{{self.precision}: {_flops(self.seconds['computation'])}}}",
            "  utilisation: 1",
        ]
        if "update" in self.seconds:
            lines.append(f"  memory_bandwidth: {_rate(self.seconds['update'])}")
        for span in ("inside", "between"):
            known = []
            if f"{span} byte" in self.seconds:
                known.append(f"bandwidth: {_rate(self.seconds[f'{span} byte'])}")
            if f"{span} message" in self.seconds:
                known.append(f"latency: {_time(self.seconds[f'{span} message'])}")
            if known:
                lines.append(f"  {span}: {{{', '.join(known)}}}")
        lines += ["  overlap: 0", f"  unit_overhead: {_time(self.seconds['unit'])}"]
        lines.append(f"  context: {max(1, round(self.context_bytes / 2**20))}MiB")
        return "\n".join(lines) + "\n"


def _flops(seconds: float) -> str:
    return f"{min(MOST_PER_S, 1 / max(seconds, 1e-18)) / 1e9:.4f}GFLOP/s"


def _rate(seconds: float) -> str:
    return f"{min(MOST_PER_S, 1 / max(seconds, 1e-18)) / 1e6:.3f}MB/s"


def _time(seconds: float) -> str:
    return f"{max(NONE_S, seconds) * 1e6:.3f}us"


def fit(observations: Sequence[Observation], *, one_link: bool = False) -> Fit:
    """Return the factors; there is at least one observation.

    Args:
        one_link: whether nodes are simulated, so that what goes between them takes the way of what
            goes inside: both are then one factor.
    """
    rows = [_terms(one) for one in observations]
    crosses = any(row[5] for row in rows)
    if one_link:
        rows = [[*row[:3], row[3] + row[5], row[4] + row[6], 0.0, 0.0] for row in rows]
    relative = [
        [term / one.step_s for term in row] for one, row in zip(observations, rows, strict=True)
    ]
    factors = _nonnegative(relative)
    errors = tuple(sum(a * x for a, x in zip(row, factors, strict=True)) - 1 for row in relative)
    seen = [any(row[i] for row in rows) for i in range(len(NAMES))]
    if one_link and crosses:
        factors[5:], seen[5:] = factors[3:5], seen[3:5]
    known = dict(zip(NAMES, factors, strict=True))
    kept = [name for name, there in zip(NAMES, seen, strict=True) if there or " " not in name]
    if max(row[1] for row in relative) * known["update"] < SHOWN:
        kept.remove("update")
    precision = observations[0].setting.precision
    return Fit(precision, {name: known[name] for name in kept}, _context(observations), errors)


def _terms(one: Observation) -> list[float]:
    """How many of each thing a step of a run has, in the order of NAMES."""
    setting, outline = one.setting, one.outline
    tokens = setting.micro * setting.accumulation * setting.context
    operations = (outline.flops_per_token or 0.0) * tokens / setting.tensor
    operations *= 1 + recomputation(setting, outline)
    trained = sum(p.numel for p in outline.parameters if p.trainable)
    held_bytes = trained / setting.tensor / setting.num_shards * UPDATE_BYTES
    units = (len(outline.units) + 1) * setting.accumulation if setting.shards else 0
    return [operations, held_bytes, units, *_sent(one)]


def _sent(run: Observation) -> list[float]:
    """Messages and bytes inside, then between. Of a ring over nodes, only the steps from node to
    node are messages between them (see rings.py)."""
    counts = {"inside": [0.0, 0.0], "between": [0.0, 0.0]}
    for one in traffic(run.setting, run.outline).transfers:
        again = run.scatter_rounds if one.kind == "reduce_scatter" else 1
        moved = one.sent_bytes if one.span == "inside" else one.node_bytes
        hops = again * one.rounds * (one.group_size - 1) * one.count
        far = again * one.rounds * (one.num_nodes - 1) * one.count if one.span == "between" else 0
        counts["inside"][0] += hops - far
        counts["between"][0] += far
        counts[one.span][1] += again * moved
    return [*counts["inside"], *counts["between"]]


def _nonnegative(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the x >= 0 for which the sums over each row times x are nearest to 1, with the squares
    of the parts times EVENLY.

    One factor is set to its best at a time, which for a sum of squares ends at the least one.
    """
    columns = list(zip(*rows, strict=True))
    sizes = [sum(a * a for a in column) for column in columns]
    factors, rest = [0.0] * len(columns), [1.0] * len(rows)
    for _ in range(ROUNDS):
        moved = 0.0
        for i, column in enumerate(columns):
            if not sizes[i]:
                continue
            step = sum(a * r for a, r in zip(column, rest, strict=True)) / sizes[i]
            step = max((step - EVENLY * factors[i]) / (1 + EVENLY), -factors[i])
            factors[i] += step
            rest = [r - a * step for a, r in zip(column, rest, strict=True)]
            moved = max(moved, abs(step) * sizes[i] ** 0.5)
        if moved < ENOUGH:
            break
    return factors


def _context(observations: Sequence[Observation]) -> int:
    """The median of what runs held beside what the planner knows of; 0 where none is known."""
    found = [
        one.peak_bytes - memory(one.setting, one.outline).total
        for one in observations
        if one.peak_bytes is not None
    ]
    return max(0, int(statistics.median(found))) if found else 0
