"""docs/planner-measured.md: a row for each case of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from forecasts import Forecast
from orchestrator.estimate.memory import memory

PATH = "docs/planner-measured.md"
COLUMNS = (
    "strategy", "options", "model", "ranks", "micro-batch", "predicted", "tracked", "error", "at",
)  # fmt: skip
MIB = 2**20
HEAD = """# The planner's memory, measured

Made by `make plan-proof`: the peak of a training step that the planner predicts by formula, against
the one that torch's own `MemTracker` sees when the trainer's functions run: the model, how it is
spread, the passes, clipping, and AdamW, in the third step. Under FSDP2 all tensors are fake and the
ranks are a fake group (shapes without memory). DDP sums gradients in C++, and FSDP1 compares
addresses, so both are followed on four real ranks.

Each error must be below {most:.0%}, and half of them below {middle:.0%}. What the tracker cannot
see, and so is in neither column: the device's context, what the allocator cannot use, and what
kernels and the communication library take for themselves. `cpu_offload` is not among the cases: on
a CPU, its two memories are one.

- **model**: layers x width, tokens of a sequence, vocabulary. Four heads or eight.
- **micro-batch**: sequences, times those added up in a step.
- **predicted**, **tracked**: MiB of rank 0.
- **at**: the moment of the predicted peak.

Half of the errors are at most {half:.2%}, the largest is {largest:.2%}.
"""
MOST, MIDDLE = 0.10, 0.05


def error(case: Forecast, tracked: int) -> float:
    """How far the prediction is off, as a share of what was tracked."""
    return memory(case.setting(), case.outline).total / tracked - 1


def cells_of_row(case: Forecast) -> list[str]:
    """What is known of a row before any run."""
    sizes, found = case.sizes, memory(case.setting(), case.outline)
    options = [f"{name.replace('__', '.')}: {value}" for name, value in case.options.items()]
    if not case.tied:
        options.append("tied: False")
    return [
        case.strategy,
        ", ".join(options) or "-",
        f"{sizes.layers} x {sizes.width}, {sizes.context}, {case.vocab_size}",
        str(case.num_ranks),
        f"{case.micro} x {case.accumulation}",
        f"{found.total / MIB:.2f}",
        found.at,
    ]


def text(cases: Sequence[Forecast], peaks: Sequence[int]) -> str:
    """The page."""
    errors = [error(case, peak) for case, peak in zip(cases, peaks, strict=True)]
    sizes = [abs(one) for one in errors]
    head = HEAD.format(most=MOST, middle=MIDDLE, half=median(sizes), largest=max(sizes))
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for case, peak, off in zip(cases, peaks, errors, strict=True):
        *names, at = cells_of_row(case)
        lines.append(_line([*names, f"{peak / MIB:.2f}", f"{off:+.2%}", at]))
    return head + "\n" + "\n".join(lines) + "\n"


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
