"""What the planner says that ranks send, against what four real ranks send in a step."""

from __future__ import annotations

from typing import Any

import pytest
from counted import STRATEGIES, Case, cases_of, count

from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.spec.train import BYTE_TOKENS

pytestmark = [pytest.mark.planner, pytest.mark.timeout(900)]

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
    *(
        case
        for case in cases_of(WIDTH, CONTEXT)
        if case.precision == "fp32" or case.accumulation == 1
    ),
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
    found: Sums = {}
    for one in traffic(Setting.of(case.spec), outline).transfers:
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


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    return count(CASES, tmp_path_factory.mktemp("traffic"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_forecast_is_what_ranks_send(strategy: str, events: dict[Case, dict[str, Any]]) -> None:
    cases = [case for case in events if case.strategy == strategy]
    assert len(cases) >= 4
    wrong = [f"{c}: {predicted(c)} {counted(events[c])}" for c in cases if not is_right(c, events)]
    assert not wrong, "\n".join(wrong)


def is_right(case: Case, events: dict[Case, dict[str, Any]]) -> bool:
    said, sent = predicted(case), counted(events[case])
    return said.keys() == sent.keys() and all(
        sent[key] == pytest.approx(said[key], rel=0.01) for key in said
    )
