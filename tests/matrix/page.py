"""docs/strategies-measured.md: a row for each cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cells import LEARNING_RATE, MODEL, NUM_RANKS, SAMPLES_PER_STEP, STEPS, VOCABULARY, Cell
from theory import buckets, collectives, held, shapes

PATH = "docs/strategies-measured.md"
COLUMNS = (
    "strategy", "precision", "accumulation", "sync", "loss", "norm", "parameters", "gradients",
    "optimizer", "collectives of a step",
)  # fmt: skip
HEAD = """# Strategies, measured

Made by `make matrix` on a CPU with two cores, gloo, {num_ranks} ranks: the built-in GPT with
{layers} layers, width {width}, context {context} and {vocabulary} tokens ({parameters} parameters,
{buckets} of DDP's buckets), {samples} samples a step, {steps} steps, AdamW with a peak rate of
{rate}, gradients clipped at 1.

- **loss**, **norm** (of the gradient): the largest relative difference at any step from one process
  that takes the whole batch at once and computes in the same way (bf16 is autocast under DDP, and
  narrow parameters under FSDP). With fp32 both must stay below 1e-6; with bf16 the loss below 1e-2,
  the norm below 1e-1.
- **sync**: `gradient_sync`. The rows with `each` and fp32 are for the collectives, and run 4 steps.
- **parameters**, **gradients**, **optimizer**: bytes that rank 0 holds between steps, padding
  included. They are those of theory, exactly, on all ranks.
- **collectives of a step**: how many on rank 0, and the bytes that it puts in. They are those of
  theory, exactly, in kind, number, size and ranks, on all ranks, in the first step and in the last
  but one. The sum of 4 bytes is the gradient norm. A step that is reported also sums its loss.
"""


class Row(NamedTuple):
    """Largest relative differences over all steps."""

    loss: float
    norm: float


def difference(values: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference."""
    return max(abs(v - e) / abs(e) for v, e in zip(values, expected, strict=True))


def cells_of_row(cell: Cell) -> tuple[list[str], list[str]]:
    """What is known of a row before any run: what names it, and what theory says of it."""
    bytes_held = held(cell, 0)
    sent = collectives(cell, 0)
    names = [cell.strategy, cell.precision, str(cell.accumulation), cell.sync]
    sizes = [bytes_held.parameters, bytes_held.gradients, bytes_held.optimizer]
    kinds: Counter[str] = Counter()
    traffic: Counter[str] = Counter()
    for collective, number in sent.items():
        kinds[collective.kind] += number
        traffic[collective.kind] += number * collective.size_bytes
    words = [f"{kinds[kind]} {kind}: {traffic[kind]}" for kind in sorted(kinds)]
    return names, [*map(str, sizes), ", ".join(words)]


def text(rows: Mapping[Cell, Row]) -> str:
    """The page."""
    num_parameters = sum(math.prod(shape) for shape in shapes().values())
    head = HEAD.format(
        num_ranks=NUM_RANKS, vocabulary=VOCABULARY, samples=SAMPLES_PER_STEP, steps=STEPS,
        rate=LEARNING_RATE, parameters=num_parameters, buckets=len(buckets()), **MODEL,
    )  # fmt: skip
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for cell, row in rows.items():
        names, theory = cells_of_row(cell)
        lines.append(_line([*names, f"{row.loss:.0e}", f"{row.norm:.0e}", *theory]))
    return head + "\n" + "\n".join(lines) + "\n"


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
