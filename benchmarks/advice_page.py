"""The page docs/advice-measured.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.paired import machine
from orchestrator.bench.book import Row
from orchestrator.bench.measured import error_percent

if TYPE_CHECKING:
    from benchmarks.advice import Verdict

HEAD = """\
# Advice, measured

Made by `make bench-advice` on {machine}, in {minutes:.0f} minutes. Ranks are processes of this
machine over gloo, two on each simulated node. `orchestrate bench` has run all strategies of some
small models. What the planner knows of the machine comes from `orchestrate bench --calibrate` on
another model. Memory limits lie between the measured peaks; a strategy fits that has its peak below
the limit. Times are medians of the clock.

{good} of {counted} cells: `strategy: auto` takes the measured fastest that fits. {ties} more are
ties and count for neither: the two fastest differ by less than 6 %, by which a run may differ from
itself, or the quartiles of their steps overlap. Strategies that are right in at least two cells:
{often}.

| model | nodes | memory | fastest that fits | advice | |
|---|---|---|---|---|---|
"""
BY_CPU = "--by-cpu"
TIMES = "Times are medians of the clock."
CPU_TIMES = (
    "Times are seconds of CPU of a step, of the rank that took most: the machine had other work, "
    "which lengthens those of the clock."
)
RUNS = """
## The runs behind it

In brackets: how far the plan is from the measurement, with the machine as calibrated.

| model | nodes | strategy | peak memory | step | quartiles | sent inside | sent between |
|---|---|---|---|---|---|---|---|
"""


def page(
    rows: Mapping[tuple[str, int], Sequence[Row]],
    verdicts: Sequence[Verdict],
    hardware: Mapping[int, str],
    seconds: float,
) -> str:
    """Return the whole page."""
    counted = [one for one in verdicts if one.counts]
    good = sum(one.advised == one.right for one in counted)
    head = HEAD.format(
        machine=machine(), minutes=seconds / 60, good=good, counted=len(counted),
        ties=len(verdicts) - len(counted), often=", ".join(_often(counted)),
    )  # fmt: skip
    head = head if BY_CPU not in sys.argv else head.replace(TIMES, CPU_TIMES)
    text = head + "".join(_verdict(one) for one in verdicts) + RUNS
    for (model, nodes), here in rows.items():
        text += "".join(_run(model, nodes, row) for row in here)
    text += "\n## The machine, as calibrated\n"
    for nodes, lines in hardware.items():
        text += f"\nWith {nodes} node(s) of two ranks:\n\n```yaml\n{lines}```\n"
    return text


def _often(counted: Sequence[Verdict]) -> list[str]:
    right = [one.right for one in counted]
    return [name for name in dict.fromkeys(right) if right.count(name) >= 2]


def _verdict(one: Verdict) -> str:
    if one.tied:
        words = f"tied with {one.tied}"
    else:
        words = "right" if one.advised == one.right else "**wrong**"
    limit = f"{one.limit_bytes / 2**20:.0f} MiB"
    right = f"{one.right} ({one.step_s * 1e3:.0f} ms)"
    return f"| {one.model} | {one.nodes} | {limit} | {right} | {one.advised} | {words} |\n"


def _run(model: str, nodes: int, row: Row) -> str:
    seen = row.measured
    quartiles = f"{(seen.low_s or 0) * 1e3:.0f} to {(seen.high_s or 0) * 1e3:.0f} ms"
    cells = [
        model, str(nodes), row.cell.strategy,
        f"{(seen.peak_bytes or 0) / 2**20:.0f} MiB{_off(row, 'peak_bytes')}",
        f"{(seen.step_s or 0) * 1e3:.0f} ms{_off(row, 'step_s')}",
        quartiles,
        f"{(seen.inside_bytes or 0) / 1e6:.1f} MB{_off(row, 'inside_bytes')}",
        f"{(seen.between_bytes or 0) / 1e6:.1f} MB{_off(row, 'between_bytes')}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |\n"


def _off(row: Row, name: str) -> str:
    error = error_percent(row.planned, row.measured, name)
    return "" if error is None else f" ({error:+.1f} %)"
