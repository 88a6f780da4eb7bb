"""The page docs/advice-measured.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.advice_rule import NOISE, Rounds, Verdict, often, score
from benchmarks.paired import machine
from orchestrator.bench.measured import error_percent
from orchestrator.estimate.whole import FITS

if TYPE_CHECKING:
    from benchmarks.advice import Proof

HEAD = """\
# Advice, measured

Made by `make bench-advice` on {machine}, in {minutes:.0f} minutes{resumed}.
Ranks are processes of this machine over gloo, two on each simulated node. `orchestrate bench` has
run all strategies of some small models, in {rounds} rounds: each strategy once, then each again.
What the planner knows of the machine comes from `orchestrate bench --calibrate` on another model.

Memory limits lie in the middle of each two measured peaks that are apart, and above the highest; a
strategy fits that has its peak below the limit in all rounds. The planner counts on {fits:.0%} of a
device's memory, so it is told of a memory of which that share is the limit. {times}

**{right} of {counted} cells**: `strategy: auto` takes the measured fastest that fits.
{ties} more are ties and count for neither. A strategy ties with the fastest where the rounds of
both overlap, or the medians differ by less than {noise:.0%}; advice that is none of those that tie
is wrong. Strategies that are the right one in at least two counted cells: {often}.
{missing}
| model | nodes | memory | fastest that fits | advice | |
|---|---|---|---|---|---|
"""
TIMES = "Times are the clock's: the median of a round's steps, and of the rounds."
CPU_TIMES = (
    "Times are seconds of CPU of a step, of the rank that took most, not the clock's: the machine "
    "had other work."
)
RESUMED = ", with runs that an earlier call had made"
MISSING = """
What did not end well, and is left out:

{lines}
"""
RUNS = """
## The runs behind it

In brackets: how far the plan is from the measurement, with the machine as calibrated.

| model | nodes | strategy | peak memory | step | rounds | sent inside | sent between |
|---|---|---|---|---|---|---|---|
"""


def page(proof: Proof) -> str:
    """Return the whole page."""
    verdicts = proof.verdicts
    right, counted = score(verdicts)
    rounds = max((len(one.times_s) for rows in proof.rows.values() for one in rows), default=0)
    lines = "\n".join(f"- {line}" for line in proof.missing)
    head = HEAD.format(
        machine=machine(), minutes=proof.spent_s / 60, rounds=rounds, right=right,
        counted=counted, ties=len(verdicts) - counted, noise=NOISE, fits=FITS,
        often=", ".join(often(verdicts)) or "none",
        resumed=RESUMED if proof.resumed else "", times=CPU_TIMES if proof.by_cpu else TIMES,
        missing=MISSING.format(lines=lines) if lines else "",
    )  # fmt: skip
    return "".join([head, *map(_verdict, verdicts), RUNS, *_runs(proof), *_calibrated(proof)])


def _verdict(one: Verdict) -> str:
    words = f"tied with {', '.join(one.tied)}" if one.tied else ""
    if one.word != "tie":
        shown = {"right": "right", "wrong": "**wrong**"}[one.word]
        words = f"{shown}, {words}" if words else shown
    limit = f"{one.limit_bytes / 2**20:.0f} MiB"
    right = f"{one.right} ({one.step_s * 1e3:.0f} ms)"
    return f"| {one.model} | {one.nodes} | {limit} | {right} | {one.advised} | {words} |\n"


def _runs(proof: Proof) -> Iterator[str]:
    for (model, nodes), rows in proof.rows.items():
        for one in rows:
            yield f"| {model} | {nodes} | {one.strategy} | {' | '.join(_figures(one))} |\n"


def _figures(one: Rounds) -> list[str]:
    seen, plan = one.last.measured, one.last.planned
    memory_off = _percent(plan.peak_bytes, one.peak_bytes)
    return [
        f"{one.peak_bytes / 2**20:.0f} MiB{memory_off}",
        f"{one.step_s * 1e3:.0f} ms{_percent(plan.step_s, one.step_s)}",
        ", ".join(f"{time_s * 1e3:.0f}" for time_s in one.times_s) + " ms",
        f"{(seen.inside_bytes or 0) / 1e6:.1f} MB{_off(one, 'inside_bytes')}",
        f"{(seen.between_bytes or 0) / 1e6:.1f} MB{_off(one, 'between_bytes')}",
    ]


def _off(one: Rounds, name: str) -> str:
    error = error_percent(one.last.planned, one.last.measured, name)
    return "" if error is None else f" ({error:+.1f} %)"


def _percent(plan: float | None, seen: float) -> str:
    return f" ({100 * (plan - seen) / seen:+.1f} %)" if plan is not None and seen else ""


def _calibrated(proof: Proof) -> Iterator[str]:
    yield "\n## The machine, as calibrated\n"
    for nodes, lines in proof.hardware.items():
        yield f"\nWith {nodes} node(s) of two ranks:\n\n```yaml\n{lines}```\n"
