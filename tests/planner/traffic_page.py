"""docs/traffic-measured.md: a row for each job whose collectives are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counted import Case, cases_of

from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.spec.train import BYTE_TOKENS

PATH = "docs/traffic-measured.md"
COLUMNS = ("strategy", "options", "precision", "accumulation", "sync", "forecast", "counted", "off")
HEAD = """# Traffic, forecast and counted

Made by `make plan-proof` on a CPU, gloo, 2 simulated nodes with 2 ranks each: the built-in GPT with
2 layers, width {width}, context {context} and 256 tokens, 2 sequences a micro-batch. No number of
ranks divides these sizes, so padding is seen.

- **forecast**: what the planner says of one step. For each kind of collective and shape of group
  (`4 on 2`: four ranks on two nodes) the bytes of the whole tensors that are summed, gathered or
  scattered, and the number of calls. The sum of 4 bytes is the gradient norm.
- **counted**: the same of the collectives that ran, on rank 0, by `train.logging.traffic`. torch's
  flight recorder had exactly as many.
- **off**: the largest difference between the two, of bytes and of calls.
"""

# Sizes that no number of ranks divides, so that padding is seen.
WIDTH, CONTEXT = 66, 18
RECOMPUTED = "activation_checkpointing: full"
# What the strategies can be varied by.
OPTIONS = {
    "ddp": [
        "ddp: {hook: fp16}",
        "ddp: {find_unused_parameters: true}",
        "ddp: {bucket_cap_mb: 0.1}",
        "ddp: {static_graph: true}",
        RECOMPUTED,
    ],
    "full_shard": [
        "fsdp: {reshard_after_forward: true}",
        "fsdp: {reshard_after_forward: 2}",
        "fsdp: {prefetch_forward: 1, prefetch_backward: 1}",
        "reductions: bf16",
        "cpu_offload: true",
        RECOMPUTED,
    ],
    "hybrid_shard": ["reductions: bf16", "fsdp: {reshard_after_forward: false}"],
    "tensor 2": [
        RECOMPUTED,
        f"{RECOMPUTED}, activation_checkpointing_every: 2",
        "activation_checkpointing: selective",
    ],
    "full_shard, FSDP1": [RECOMPUTED],
}
CASES = [
    *cases_of(WIDTH, CONTEXT),
    *(
        Case(strategy, width=WIDTH, context=CONTEXT, options=options)
        for strategy, several in OPTIONS.items()
        for options in several
    ),
]
Sums = dict[tuple[str, int, int], tuple[float, float]]


def predicted(case: Case) -> Sums:
    """Payload bytes and calls of each kind and shape of group."""
    sizes = case.spec.train.model.sizes
    assert sizes is not None
    outline = gpt_outline(sizes, BYTE_TOKENS, tied=True, dropout=0.0)
    return predicted_sums(Setting.of(case.spec), outline)


def predicted_sums(setting: Setting, outline: Outline) -> Sums:
    """The same of any model."""
    found: Sums = {}
    for one in traffic(setting, outline).transfers:
        key = (one.kind, one.group_size, one.ranks_per_node)
        payload, calls = found.get(key, (0, 0))
        found[key] = (payload + one.payload_bytes, calls + one.count)
    return found


def counted(event: dict[str, Any]) -> Sums:
    """The same as the trainer counted it."""
    return {
        (one["kind"], one["group_size"], one["ranks_per_node"]): (
            one["payload_bytes"],
            one["calls"],
        )
        for one in event["collectives"]
    }


def words(sums: Sums) -> str:
    """A cell of the table: kind, shape of the group, bytes and calls."""
    parts = [
        f"{kind} {size} on {size // in_a_node}: {payload:.0f} in {calls:g}"
        for (kind, size, in_a_node), (payload, calls) in sorted(sums.items())
    ]
    return ", ".join(parts)


def off(said: Sums, sent: Sums) -> float:
    """The largest relative difference."""
    if said.keys() != sent.keys():
        return 1.0
    pairs = [pair for key in sent for pair in zip(said[key], sent[key], strict=True)]
    return max(abs(one - other) / other for one, other in pairs)


def names(case: Case) -> list[str]:
    """The cells that tell which job a row is of."""
    return [case.strategy, case.options, case.precision, str(case.accumulation), case.sync]


def text(events: Mapping[Case, dict[str, Any]]) -> str:
    """The page."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for case, event in events.items():
        said, sent = predicted(case), counted(event)
        lines.append(_line([*names(case), words(said), words(sent), f"{off(said, sent):.1%}"]))
    return HEAD.format(width=WIDTH, context=CONTEXT) + "\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
