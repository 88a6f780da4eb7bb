"""pace: rings and trees over nodes, links that work side by side, and copies under offloading."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest
from test_estimate_pace import FAST, GPT2, LONG, of
from test_estimate_traffic import setting

from orchestrator.cards import Link
from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.rings import TREE_SHARE, seconds

INSIDE_S, BETWEEN_S = 3.4e-6, 14e-6
LATE = replace(
    FAST,
    inside=Link("", 450e9, INSIDE_S, "a test"),
    between=Link("", 400e9, BETWEEN_S, "a test"),
)


def over(nodes: int, kind: str = "all_reduce", payload_bytes: int = 16) -> Transfer:
    """One call of nodes of 8 ranks."""
    return Transfer(kind, "a", payload_bytes, 1, nodes * 8, "between", ranks_per_node=8)


# NCCL, src/graph/tuning.cc: a ring waits (nsteps - nInterSteps) * intraLat + nInterSteps *
# interLat, and an all-reduce by trees 2 * ((nRanks/nNodes - 1) * intraLat + log2(nNodes) *
# interLat). Of 16 bytes nothing but the waiting counts.


@pytest.mark.parametrize("nodes", [2, 4, 64])
@pytest.mark.parametrize(("kind", "rounds"), [("all_gather", 1), ("reduce_scatter", 1)])
def test_only_steps_between_nodes_wait_for_the_network(nodes: int, kind: str, rounds: int) -> None:
    steps, far = rounds * (nodes * 8 - 1), rounds * (nodes - 1)
    expected = (steps - far) * INSIDE_S + far * BETWEEN_S
    assert seconds(over(nodes, kind), LATE) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("nodes", [2, 4, 8, 64])
def test_small_sums_over_nodes_go_by_trees(nodes: int) -> None:
    expected = 2 * (7 * INSIDE_S + log2(nodes) * BETWEEN_S)
    assert seconds(over(nodes), LATE) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("nodes", [2, 64])
def test_gloo_has_no_trees(nodes: int) -> None:
    expected = 2 * (nodes * 7 * INSIDE_S + (nodes - 1) * BETWEEN_S)
    assert seconds(over(nodes), replace(LATE, trees=False)) == pytest.approx(
        expected, rel=0.05 if nodes == 2 else 0.01
    )


@pytest.mark.parametrize(
    ("nodes", "payload_bytes", "by_trees"), [(2, 2**30, False), (2, 2**20, True), (64, 2**26, True)]
)
def test_the_better_of_ring_and_trees(nodes: int, payload_bytes: int, by_trees: bool) -> None:
    call = over(nodes, payload_bytes=payload_bytes)
    ring_s = seconds(call, replace(LATE, trees=False))
    assert (seconds(call, LATE) < ring_s) is by_trees
    trees_s = 2 * payload_bytes / TREE_SHARE / 400e9
    assert seconds(call, LATE) <= min(ring_s, trees_s + 3e-4)


def test_ddp_over_many_nodes_is_not_decided_by_latency() -> None:
    """384 ranks: a ring would wait 5 ms for each of gpt2's buckets."""
    case = setting(num_nodes=64, ranks_per_node=6, **LONG, precision="bf16")
    known, rings = of(case, hardware=LATE), of(case, hardware=replace(LATE, trees=False))
    assert rings.between_s > 3 * known.between_s
    assert known.between_s < 1.5 * of(case, hardware=FAST).between_s


def test_links_in_a_node_and_between_nodes_work_side_by_side() -> None:
    """hybrid_shard sums between copies while the next gradients are scattered in the node."""
    case = setting(
        strategy="hybrid_shard", shard_group=8, micro=1, context=8, precision="bf16", num_nodes=4
    )
    even = replace(FAST, inside=Link("", 50e9, 0.0, "a test"))
    found = of(case, hardware=even)
    assert found.exposed_s < 0.8 * (found.inside_s + found.between_s)
    assert found.exposed_s >= max(found.inside_s, found.between_s)
    waits = of(case, hardware=replace(even, overlap=0.0))
    assert waits.exposed_s == pytest.approx(waits.inside_s + waits.between_s)


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        # Gathered twice, and gradients back once.
        ({}, 3),
        ({"accumulation": 4}, 4 * 2 + 1),
        ({"accumulation": 4, "gradient_sync": "each"}, 4 * 3),
        ({"accumulation": 4, "strategy": "shard_grad_op"}, 4 + 1),
    ],
)
def test_offloading_copies_for_each_gather_and_sum(changes: dict[str, object], copied: int) -> None:
    case = setting(**{"strategy": "full_shard", "cpu_offload": True, **changes})
    root = GPT2.root.numel  # is gathered once
    twice = case.strategy == "full_shard"
    numbers = GPT2.numel * copied - root * case.accumulation * twice
    found = of(case)
    assert found.copies_s == pytest.approx(numbers * 4 / 16 / 25e9)
    assert found.optimizer_s == pytest.approx(GPT2.numel * 28 / 16 / 25e9)
    assert of(replace(case, cpu_offload=False)).copies_s == 0


def test_copies_that_no_computation_hides_are_exposed_and_may_be_the_limit() -> None:
    slow = replace(FAST, host_bandwidth=1e8)
    case = setting(strategy="full_shard", cpu_offload=True, accumulation=8)
    found = of(case, hardware=slow)
    assert found.bound == "copies"
    assert found.exposed_s > 0.9 * found.copies_s
    cpu = replace(slow, card="cpu")
    assert of(case, hardware=cpu).copies_s == 0


def test_the_host_of_sharded_units_is_a_limit_of_its_own() -> None:
    found = of(setting(strategy="full_shard"), hardware=replace(FAST, unit_overhead_s=0.1))
    assert found.bound == "host"
