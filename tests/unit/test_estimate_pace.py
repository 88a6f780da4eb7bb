"""pace: the published times, what computation hides, and where the limit is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_estimate_traffic import FULL_BF16, GB, HYBRID_BF16, SEVEN_B, setting

from orchestrator.cards import Link
from orchestrator.estimate.figures import Pace, Traffic, Transfer
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.pace import pace, work_of
from orchestrator.estimate.rings import seconds
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.estimate.whole import estimate
from orchestrator.spec.presets import PRESETS

INSIDE = Link("", 450e9, 0.0, "a test")
# Fast cards and links without latency: times are those of the bytes alone.
FAST = Hardware(
    card="a test",
    memory_bytes=80 * GB,
    peak={"fp32": 1e14, "bf16": 1e15},
    utilisation={"fp32": 0.5, "bf16": 0.4},
    memory_bandwidth=2e12,
    inside=INSIDE,
    between=Link("", 50e9, 0.0, "a test"),
)
GPT2 = gpt_outline(PRESETS["gpt2"], 50257, tied=True, dropout=0.0)
LONG = {"context": 1024, "micro": 8}
ALONE = {"num_nodes": 1, "ranks_per_node": 1}


def of(case: Setting, outline: Outline = GPT2, hardware: Hardware = FAST) -> Pace:
    found = pace(case, outline, traffic(case, outline), hardware)
    assert found is not None
    return found


def span_s(sent: Traffic, hardware: Hardware, span: str) -> float:
    return sum(seconds(one, hardware) for one in sent.transfers if one.span == span)


def between(rate: float) -> Hardware:
    return replace(FAST, between=Link("", rate, 0.0, "a test"))


@pytest.mark.parametrize(
    ("changes", "slow_s", "fast_s"),
    [
        ({}, 1.05, 0.131),
        (FULL_BF16, 1.05, 0.131),
        ({"strategy": "shard_grad_op", "precision": "bf16"}, 0.79, 0.098),
        (HYBRID_BF16, 0.56, 0.07),
    ],
)
def test_times_between_nodes(changes: dict[str, Any], slow_s: float, fast_s: float) -> None:
    """7 B parameters on 2 x 8, at 50 and 400 GB/s a node; NVLink does not slow the ring down."""
    sent = traffic(setting(**changes), SEVEN_B)
    quick_inside = replace(FAST, inside=Link("", 1e13, 0.0, "a test"))
    for rate, expected in ((50e9, slow_s), (400e9, fast_s)):
        hardware = replace(quick_inside, between=Link("", rate, 0.0, "a test"))
        assert span_s(sent, hardware, "between") == pytest.approx(expected, rel=0.01)


def test_time_inside_under_hybrid() -> None:
    sent = traffic(setting(**HYBRID_BF16), SEVEN_B)
    assert span_s(sent, FAST, "inside") == pytest.approx(0.109, abs=5e-4)


def test_a_ring_over_nodes_goes_as_fast_as_its_slowest_part() -> None:
    sent = traffic(setting(), SEVEN_B)
    assert span_s(sent, between(800e9), "between") == pytest.approx(52.5e9 / 450e9, rel=1e-3)


@pytest.mark.parametrize(("kind", "rounds"), [("all_reduce", 2), ("all_gather", 1)])
def test_latency_counts_the_messages_of_a_ring(kind: str, rounds: int) -> None:
    calls = Transfer(kind, "a", payload_bytes=1600, count=10, group_size=16, span="inside")
    hardware = replace(FAST, inside=Link("", 1e6, 2e-6, "a test"))
    assert seconds(calls, hardware) == pytest.approx(
        rounds * (15 * 10 * 2e-6 + 1600 * 15 / 16 / 1e6)
    )


def test_gloo_makes_an_all_reduce_of_a_reduce_scatter() -> None:
    calls = Transfer("reduce_scatter", "a", 1600, count=1, group_size=16, span="inside")
    whole = replace(calls, kind="all_reduce")
    assert seconds(calls, FAST) == pytest.approx(seconds(whole, FAST) / 2)
    gloo = replace(FAST, scatter_rounds=2)
    assert seconds(calls, gloo) == pytest.approx(seconds(whole, gloo))


def test_operations_of_gpt2() -> None:
    """854.4 million were counted for a token, and the formula says 855.2."""
    assert GPT2.flops_per_token == pytest.approx(855.2e6, rel=1e-4)
    assert GPT2.flops_per_token == pytest.approx(854.4e6, rel=2e-3)


def test_without_others_the_share_of_the_peak_is_that_of_the_computation() -> None:
    case = setting(**ALONE, **LONG, precision="bf16")
    found = of(case)
    assert GPT2.flops_per_token is not None
    tokens_per_s = case.tokens_per_step / found.compute_s
    assert GPT2.flops_per_token * tokens_per_s / 1e15 == pytest.approx(0.4)
    assert found.step_s == pytest.approx(found.compute_s + found.optimizer_s)
    assert found.tokens_per_s == pytest.approx(case.tokens_per_step / found.step_s)
    assert found.bound == "compute"


@pytest.mark.parametrize(
    ("checkpointing", "every", "low", "high"),
    [("full", 1, 1.2, 1 + 1 / 3), ("full", 2, 1.1, 1 + 1 / 6), ("selective", 1, 1.01, 1.05)],
)
def test_what_is_computed_again_takes_time(
    checkpointing: str, every: int, low: float, high: float
) -> None:
    case = setting(**ALONE, **LONG)
    again = replace(case, checkpointing=checkpointing, checkpointing_every=every)
    assert low < of(again).compute_s / of(case).compute_s < high


def test_under_ddp_the_last_bucket_is_exposed_and_the_rest_hides() -> None:
    case = setting(**LONG)
    found = of(case, hardware=between(1e12))
    (sums,) = traffic(case, GPT2).transfers
    assert found.exposed_s == pytest.approx(work_of(sums, between(1e12)).edge_s)
    assert 0 < found.exposed_s < found.between_s
    # The token embedding's gradient comes last, and is in no other bucket.
    assert sums.edge_bytes >= 4 * 50257 * 768


def test_a_slow_network_is_the_limit() -> None:
    found = of(setting(**LONG), hardware=between(1e9))
    assert found.bound == "between"
    # What the backward pass does not hide, two thirds of the computation.
    hidden = found.between_s - found.exposed_s
    assert hidden == pytest.approx(found.compute_s * 2 / 3)


def test_gathers_hide_behind_the_neighbouring_block() -> None:
    case = setting(**LONG, strategy="full_shard", precision="fp32")
    found = of(case, hardware=between(1e12))
    assert found.exposed_s < 0.6 * found.between_s
    assert of(case, hardware=replace(between(1e12), overlap=0.0)).exposed_s == pytest.approx(
        found.between_s
    )


@pytest.mark.parametrize("strategy", ["ddp", "full_shard", "hybrid_shard"])
def test_where_nothing_overlaps_all_communication_is_exposed(strategy: str) -> None:
    group = 8 if strategy == "hybrid_shard" else None
    case = setting(**LONG, strategy=strategy, shard_group=group, accumulation=3)
    found = of(case, hardware=replace(FAST, overlap=0.0))
    assert found.exposed_s == pytest.approx(found.inside_s + found.between_s)


def test_only_the_last_micro_batch_hides_the_sum() -> None:
    """With more of them the computation grows, and what hides the sum does not."""
    one, four = setting(**LONG), setting(**LONG, accumulation=4)
    slow = between(1e9)
    assert of(four, hardware=slow).exposed_s == pytest.approx(of(one, hardware=slow).exposed_s)
    assert of(four).compute_s == pytest.approx(4 * of(one).compute_s)


def test_the_update_takes_the_memory_s_time() -> None:
    held = GPT2.numel * 28
    assert of(setting(**ALONE)).optimizer_s == pytest.approx(held / 2e12)
    assert of(setting(strategy="full_shard")).optimizer_s == pytest.approx(held / 16 / 2e12)
    away = of(setting(strategy="full_shard", cpu_offload=True)).optimizer_s
    assert away > 10 * held / 16 / 2e12


def test_the_host_s_time_for_units_counts_under_sharding() -> None:
    slow_host = replace(FAST, unit_overhead_s=0.01)
    assert of(setting(), hardware=slow_host).host_s == 0
    case = setting(strategy="full_shard", accumulation=2)
    assert of(case, hardware=slow_host).host_s == pytest.approx(13 * 2 * 0.01)


def test_tensor_ranks_share_the_computation_and_wait_for_their_sums() -> None:
    whole = of(setting(**LONG, strategy="full_shard"))
    split = of(setting(**LONG, strategy="full_shard", tensor=4))
    assert split.compute_s == pytest.approx(whole.compute_s / 4)
    assert split.inside_s > 0
    assert split.exposed_s > split.inside_s


def test_time_and_cost_to_the_end() -> None:
    found = of(setting(**LONG, steps=1000), hardware=replace(FAST, price_per_gpu_hour=2.0))
    assert found.total_s == pytest.approx(1000 * found.step_s)
    assert found.cost == pytest.approx(found.total_s / 3600 * 16 * 2.0)
    assert of(setting(**LONG)).cost is None


@pytest.mark.parametrize(
    "unknown",
    [{"peak": {}}, {"between": None}, {"peak": {"bf16": 1e15}}],
)
def test_no_time_without_its_facts(unknown: dict[str, Any]) -> None:
    case = setting()
    assert pace(case, GPT2, traffic(case, GPT2), replace(FAST, **unknown)) is None
    assert estimate(case, GPT2, replace(FAST, **unknown)).pace is None


def test_no_time_for_a_model_of_unknown_operations() -> None:
    assert estimate(setting(), SEVEN_B, FAST).pace is None


def test_a_link_that_nothing_uses_need_not_be_known() -> None:
    case = setting(num_nodes=1)
    assert estimate(case, GPT2, replace(FAST, between=None)).pace is not None


def test_whether_it_fits() -> None:
    case = setting()
    total = estimate(case, GPT2, FAST).memory.total
    assert estimate(case, GPT2, replace(FAST, memory_bytes=None)).fits is None
    assert estimate(case, GPT2, replace(FAST, memory_bytes=total * 2)).fits is True
    assert estimate(case, GPT2, replace(FAST, memory_bytes=total)).fits is False


def test_what_the_figures_leave_out_is_said() -> None:
    said = "\n".join(estimate(setting(), GPT2, FAST).left_out)
    assert "the allocator" in said
    assert "checkpoints" in said
    assert "host_bandwidth" not in said
    away = estimate(setting(strategy="full_shard", cpu_offload=True), GPT2, FAST)
    assert any("25 GB/s (hardware.host_bandwidth)" in words for words in away.left_out)
    prototype = estimate(setting(strategy="dp"), GPT2, FAST)
    assert prototype.pace is None
    assert any("strategy dp" in words for words in prototype.left_out)
