"""The bytes that the trainer counts in the collectives of a step are those worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from counted import STRATEGIES, Case, cases_of, count

pytestmark = [pytest.mark.planner, pytest.mark.timeout(900)]

# Numbers of a GPT with width 32, context 16 and 256 tokens, head and embedding the same: a block
# has 12 * 32^2 + 13 * 32; the rest 256 * 32 + 16 * 32 + 2 * 32. Four ranks divide all of it.
BLOCKS, REST = 2 * 12_704, 8_768
# With half of each matrix and of the biases of the two that are split by rows: 12512 / 2 + 192.
SPLIT_BLOCKS = 2 * 6_448
ACTIVATION = 2 * 16 * 32  # numbers that one rank's micro-batch has between two blocks
SUMS_OF_ACTIVATIONS = 2 * 4  # two each in a block's forward and backward pass

# Shape of a group: ranks, and ranks on one node.
ALL, NODE, PAIR = (4, 2), (2, 2), (2, 1)
Bytes = dict[tuple[str, int, int], float]


def by_hand(case: Case) -> Bytes:
    """Payload of each kind and shape of group."""
    norm = 4.0
    whole = 4.0 * (BLOCKS + REST) * syncs(case)
    if case.strategy.startswith("ddp") or case.strategy == "no_shard":
        return {("all_reduce", *ALL): whole}
    if case.strategy == "no_shard, FSDP1":
        return {("all_reduce", *ALL): whole + norm}
    blocks = SPLIT_BLOCKS if case.strategy == "tensor 2" else BLOCKS
    group = {"hybrid": NODE, "tensor": PAIR}.get(case.strategy[:6], ALL)
    return {
        ("all_gather", *group): gathered(case, blocks),
        ("reduce_scatter", *group): 4 * (blocks + REST) * syncs(case),
        ("all_reduce", *ALL): norm,
        **beside(case),
    }


def syncs(case: Case) -> int:
    return case.accumulation if case.sync == "each" else 1


def gathered(case: Case, blocks: int) -> float:
    """Blocks again for the backward pass, unless they were kept; the rest is kept in any case."""
    numbers = case.accumulation * (2 * blocks + REST)
    if case.strategy.startswith("shard_grad_op"):
        # torch's no_sync under FSDP1 keeps them over all micro-batches.
        kept = case.strategy.endswith("FSDP1") and case.sync == "last"
        numbers = (1 if kept else case.accumulation) * (blocks + REST)
    return numbers * item_bytes(case)


def item_bytes(case: Case) -> int:
    return 2 if case.precision == "bf16" else 4


def beside(case: Case) -> Bytes:
    """What hybrid sharding sums between copies, and tensor parallelism between parts of a block."""
    if case.strategy.startswith("hybrid"):
        return {("all_reduce", *PAIR): 4 * (BLOCKS + REST) / 2 * syncs(case)}
    if case.strategy == "tensor 2":
        sums = SUMS_OF_ACTIVATIONS * case.accumulation
        return {("all_reduce", *NODE): sums * ACTIVATION * item_bytes(case)}
    return {}


def in_event(event: dict[str, Any]) -> Bytes:
    return {
        (one["kind"], one["group_size"], one["ranks_per_node"]): one["payload_bytes"]
        for one in event["collectives"]
    }


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    return count(cases_of(), tmp_path_factory.mktemp("counted"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_counted_bytes_are_those_by_hand(strategy: str, events: dict[Case, dict[str, Any]]) -> None:
    cases = [case for case in events if case.strategy == strategy]
    assert len(cases) == 4
    for case in cases:
        assert in_event(events[case]) == by_hand(case), case


def test_no_collective_is_missed(events: dict[Case, dict[str, Any]]) -> None:
    """Nor is one counted twice: the flight recorder has as many."""
    assert {(event["unseen"], event["steps"]) for event in events.values()} == {(0, 2)}


def test_a_small_cap_makes_several_calls(events: dict[Case, dict[str, Any]]) -> None:
    calls = [
        events[Case(name)]["collectives"][0]["calls"] for name in ("ddp", "ddp, small buckets")
    ]
    assert calls == [1, 3]
