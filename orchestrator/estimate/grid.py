"""`plan --compare`: the job over all combinations of some values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.estimate.lines import left_open, spec_with
from orchestrator.spec.strategies import parallelism_problems
from orchestrator.spec.suggest import did_you_mean

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.search import Question
    from orchestrator.estimate.setting import Setting
    from orchestrator.spec import JobSpec

# What --compare calls the parts of a setting, and the texts that they take; None: whole numbers.
AXES: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "strategy": (
        "strategy",
        ("ddp", "shard_grad_op", "full_shard", "hybrid_shard", "no_shard", "dp"),
    ),
    "nodes": ("num_nodes", None),
    "group": ("shard_group", None),
    "micro": ("micro", None),
    "accumulation": ("accumulation", None),
    "checkpointing": ("checkpointing", ("none", "selective", "full")),
    "offload": ("cpu_offload", ("false", "true")),
    "sync": ("gradient_sync", ("last", "each")),
    "precision": ("precision", ("fp32", "bf16", "fp16")),
}
MOST_CELLS = 500
FORM = "write it as strategy=ddp,full_shard;nodes=1,2,4"


@dataclass(frozen=True)
class Cell:
    """One combination.

    Args:
        values: by the name of the axis.
        estimate: None where the combination is not possible.
        problem: why it is not.
    """

    values: dict[str, Any]
    estimate: Estimate | None
    problem: str = ""


def parse_axes(text: str) -> dict[str, list[Any]]:
    """Return the values to compare, by the name of the axis, in the order given.

    Raises UserError for what cannot be read.
    """
    axes: dict[str, list[Any]] = {}
    for part in text.split(";"):
        name, equals, values = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UserError(f"--compare: {part!r} has no =; {FORM}")
        if name not in AXES:
            close = did_you_mean(name, list(AXES))
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"--compare: no {name!r}; {hint}there are {', '.join(AXES)}")
        if name in axes:
            raise UserError(f"--compare: {name} is there twice; write its values in one list")
        found = [_value(name, value.strip()) for value in values.split(",")]
        axes[name] = list(dict.fromkeys(found))
    cells = 1
    for each in axes.values():
        cells *= len(each)
    if cells > MOST_CELLS:
        raise UserError(f"--compare: {cells} combinations, and at most {MOST_CELLS} are made")
    return axes


def _value(axis: str, text: str) -> Any:
    allowed = AXES[axis][1]
    if allowed is None:
        if text.isascii() and text.isdigit() and 0 < int(text) < 10**9:
            return int(text)
        raise UserError(f"--compare: {axis}: {text!r} is no whole number from 1")
    if text not in allowed:
        raise UserError(f"--compare: {axis}: {text!r} is none of {', '.join(allowed)}")
    return text == "true" if axis == "offload" else text


def cells(spec: JobSpec, question: Question, axes: dict[str, list[Any]]) -> list[Cell]:
    """Return all combinations: what fits first, and of these the fastest first."""
    if "num_nodes" in (AXES[name][0] for name in axes):  # each number by itself
        question = replace(question, node_sizes=())
    combined = [
        _grouped(question.setting, dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]
    if "group" in axes and not any(values["group"] for values in combined):
        raise UserError("--compare: group is for hybrid_shard: add strategy=hybrid_shard")
    different = [values for at, values in enumerate(combined) if values not in combined[:at]]
    return sorted((_cell(spec, question, values) for values in different), key=_order)


def _grouped(setting: Setting, values: dict[str, Any]) -> dict[str, Any]:
    """The values, without a size of groups where the strategy has none."""
    if "group" in values and values.get("strategy", setting.strategy) != "hybrid_shard":
        return {**values, "group": None}
    return values


def _order(cell: Cell) -> tuple[int, float]:
    one = cell.estimate
    if one is None:
        return (3, 0.0)
    return ({True: 0, None: 1, False: 2}[one.fits], -one.pace.tokens_per_s if one.pace else 0.0)


def _cell(spec: JobSpec, question: Question, values: dict[str, Any]) -> Cell:
    setting = _setting(question.setting, values)
    problem = next(_problems(spec, setting), "")
    if problem:
        return Cell(values, None, problem)
    return Cell(values, question.estimate(setting))


def _setting(setting: Setting, values: dict[str, Any]) -> Setting:
    found = replace(setting, **{AXES[name][0]: value for name, value in values.items()})
    if found.strategy != "hybrid_shard":
        found = replace(found, shard_group=None)
    elif found.shard_group is None:
        found = replace(found, shard_group=found.ranks_per_node // found.tensor)
    if not found.shards:
        found = replace(found, reductions="fp32")
    return found


def _problems(spec: JobSpec, setting: Setting) -> Iterator[str]:
    yield from (p.message for p in parallelism_problems(spec_with(left_open(spec), setting)))
