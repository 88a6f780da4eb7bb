"""The planner's memory: published figures, and what must hold of any job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.estimate import reference, whole
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.hardware import Hardware
from orchestrator.estimate.held import held
from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline, Parameter, Unit
from orchestrator.estimate.setting import Setting
from orchestrator.spec.parallelism import Ddp, Fsdp, Wrap
from orchestrator.spec.presets import PRESETS, ModelSizes

GB = 1e9


def a_setting(**changes: Any) -> Setting:
    base = Setting(
        strategy="ddp", num_nodes=1, ranks_per_node=4, shard_group=None, tensor=1,
        precision="fp32", reductions="fp32", micro=1, accumulation=1, context=64,
        checkpointing="none", checkpointing_every=1, cpu_offload=False, gradient_sync="last",
        steps=100, ddp=Ddp(), fsdp=Fsdp(), wrap=Wrap(),
    )  # fmt: skip
    return replace(base, **changes)


def of_numbers(numbers: int, layers: int = 32) -> Outline:
    """A model of equal blocks and nothing else, of which nothing but its size is known."""
    units = tuple(
        Unit(str(n), (Parameter(f"{n}.weight", (numbers // layers,)),)) for n in range(layers)
    )
    return Outline(units, Unit("", ()), 0, 0, 0, 0, 0.0, None)


# ZeRO's table 1, in GB: parameters in billions, ranks, and stages 1 to 3.
ZERO = [
    (7.5, 1, 120, 120, 120), (7.5, 4, 52.5, 41.3, 30), (7.5, 16, 35.6, 21.6, 7.5),
    (7.5, 64, 31.4, 16.6, 1.9), (7.5, 1024, 30.1, 15.1, 0.12), (128, 64, 536, 284, 32),
    (1000, 1024, 4011, 2013, 15.6),
]  # fmt: skip


@pytest.mark.parametrize("row", ZERO, ids=str)
def test_the_table_of_zero(row: tuple[float, int, float, float, float]) -> None:
    billions, ranks, *expected = row
    assert reference.model_states(billions * GB, ranks, 0) == 16 * billions * GB
    for stage, gigabytes in enumerate(expected, 1):
        found = reference.model_states(billions * GB, ranks, stage) / GB
        assert found == pytest.approx(gigabytes, rel=0.03 if gigabytes < 1 else 0.015)


@pytest.mark.parametrize(
    ("nodes", "changes", "gigabytes"),
    [
        (1, {}, 112),
        (2, {"strategy": "full_shard"}, 7),
        (1, {"strategy": "full_shard"}, 14),
        (8, {"strategy": "full_shard"}, 1.75),
        (8, {"strategy": "hybrid_shard", "shard_group": 8}, 14),
        (2, {"strategy": "shard_grad_op"}, 7),
    ],
)
def test_state_of_seven_billion(nodes: int, changes: dict[str, Any], gigabytes: float) -> None:
    setting = a_setting(num_nodes=nodes, ranks_per_node=8, **changes)
    assert sum(held(setting, of_numbers(7_000_000_000))) / GB == pytest.approx(gigabytes, rel=1e-3)


def test_state_of_seventy_billion_on_64() -> None:
    setting = a_setting(strategy="full_shard", num_nodes=8, ranks_per_node=8)
    outline = of_numbers(70_000_000_000, 80)
    assert sum(held(setting, outline)) / GB == pytest.approx(17.5, rel=1e-3)


def test_buckets_of_ddp_that_gradients_do_not_live_in() -> None:
    setting = a_setting(ddp=Ddp(gradient_as_bucket_view=False))
    found = memory(setting, of_numbers(7_000_000_000))
    assert found.buckets / GB == pytest.approx(28, rel=1e-3)
    assert found.total / GB == pytest.approx(140, rel=0.01)


@pytest.mark.parametrize("strategy", ["ddp", "full_shard"])
def test_a_tied_head_s_gradient_is_added_in_a_third_tensor(strategy: str) -> None:
    """65536 words of 256 numbers are 64 MiB; one process held three of them at the end of the
    backward pass, beside parameters and state, and with DDP the gradients' buckets."""
    words = gpt_outline(ModelSizes(2, 4, 256, 64), 65536, True, 0.0)
    found = memory(a_setting(strategy=strategy, ranks_per_node=2), words)
    assert found.at == "backward"
    three = 3 * 64 * 2**20
    assert found.working + found.unsharded >= three + (found.parameters if strategy != "ddp" else 0)


def test_two_blocks_and_a_sum_are_whole_at_a_time() -> None:
    """7 billion in 32 blocks: two of them in bf16 are 0.875 GB, and one's fp32 sum is too."""
    setting = a_setting(strategy="full_shard", num_nodes=2, ranks_per_node=8, precision="bf16")
    found = memory(setting, of_numbers(7_000_000_000))
    block = 7 / 32
    # At the peak: a block's gradients in bf16, the next block gathered, its sum and the last one's.
    assert 0.875 + 0.875 <= found.unsharded / GB + 1e-6 <= 0.875 + 0.875 + 4 * block


def test_shard_grad_op_keeps_all_parameters_whole() -> None:
    """7 billion on 16 ranks: 7 GB of state, and 14 GB of bf16 parameters."""
    setting = a_setting(strategy="shard_grad_op", num_nodes=2, ranks_per_node=8, precision="bf16")
    found = memory(setting, of_numbers(7_000_000_000))
    state = sum(held(setting, of_numbers(7_000_000_000)))
    assert (state + 14 * GB) / GB == pytest.approx(21, rel=1e-3)
    # The peak is at the last block, before most gradients are there.
    assert found.total / GB == pytest.approx(21, rel=0.05)


@pytest.mark.case("T33")
def test_estimates_far_below_use_are_below_the_planners() -> None:
    """DeepSpeed's and accelerate's have model states alone; the planner has the rest too."""
    large = 6805e6
    assert reference.deepspeed_zero3(large, 131e6, 4) / 2**30 == pytest.approx(29.01, abs=0.01)
    assert reference.deepspeed_zero2(2851e6, 8) / 2**30 == pytest.approx(11.28, abs=0.01)
    assert reference.accelerate_training(large) == reference.model_states(large, 1, 0) / 2
    outline = gpt_outline(ModelSizes(32, 32, 4096, 2048), 50257, tied=True, dropout=0.0)
    setting = a_setting(strategy="full_shard", context=2048, micro=4, precision="bf16")
    found = memory(setting, outline)
    estimate = reference.deepspeed_zero3(outline.numel, 50257 * 4096, 4)
    rest = found.activations + found.logits + found.unsharded + found.working
    assert rest > estimate / 2
    assert found.total > 1.5 * estimate
    said = whole.estimate(setting, outline, Hardware(context_bytes=2**30)).left_out
    assert any("allocator" in words for words in said)
    assert any("context and libraries" in words for words in said)


def test_activations_of_a_layer() -> None:
    sizes: dict[str, Any] = {"sequence": 2048, "micro": 1, "width": 8192, "heads": 64}
    for kind, gigabytes in (("none", 153.0), ("flash", 45.6), ("full", 2.68)):
        found = 80 * reference.layer_activations(**sizes, kind=kind) / GB
        assert found == pytest.approx(gigabytes, rel=2e-3)
    gpt3: dict[str, Any] = {"sequence": 2048, "micro": 1, "width": 12288, "heads": 96}
    saved = 1 - reference.layer_activations(**gpt3, kind="flash") / reference.layer_activations(
        **gpt3
    )
    assert saved == pytest.approx(0.70, abs=0.005)


def test_what_torchs_tracker_measured_of_gpt2() -> None:
    """3114.8 MiB of activations, logits among them; the embeddings' part is the rest."""
    outline = gpt_outline(PRESETS["gpt2"], 50257, tied=False, dropout=0.0)
    found = memory(a_setting(context=1024, micro=4), outline)
    assert found.parameters / 2**20 == pytest.approx(621.9, rel=1e-3)
    assert found.optimizer / 2**20 == pytest.approx(1243.9, rel=1e-3)
    losses = 4 * 1024 * 50257 * 4
    assert (found.activations + losses) / 2**20 == pytest.approx(3114.8, rel=0.01)


@pytest.mark.case("T02")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_accumulation_without_sums_holds_whole_gradients(precision: str) -> None:
    outline = gpt_outline(PRESETS["tiny"], 256, tied=True, dropout=0.0)
    setting = a_setting(strategy="full_shard", accumulation=4, precision=precision)
    last, each = memory(setting, outline), memory(replace(setting, gradient_sync="each"), outline)
    one = memory(replace(setting, accumulation=1), outline)
    whole = 4 * outline.numel
    assert last.moments["forward"] - one.moments["forward"] == pytest.approx(whole, rel=0.01)
    assert last.total - one.total > 0.7 * whole
    assert each.total < last.total


SETTINGS = st.builds(
    a_setting,
    strategy=st.sampled_from(["ddp", "full_shard", "shard_grad_op", "no_shard"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    reductions=st.sampled_from(["fp32", "bf16"]),
    micro=st.integers(1, 64),
    accumulation=st.integers(1, 3),
    context=st.integers(1, 512),
    checkpointing=st.sampled_from(["none", "full", "selective"]),
    checkpointing_every=st.integers(1, 3),
    gradient_sync=st.sampled_from(["last", "each"]),
    ranks_per_node=st.integers(1, 9),
    fsdp=st.builds(Fsdp, version=st.sampled_from([1, 2])),
    attention=st.sampled_from(["flash", "math"]),
)
OUTLINES = st.builds(
    gpt_outline,
    st.builds(
        lambda layers, heads, each, context: ModelSizes(layers, heads, heads * each, context),
        st.integers(1, 5), st.integers(1, 4), st.integers(1, 33), st.just(64),
    ),
    st.integers(2, 999), st.booleans(), st.sampled_from([0.0, 0.1]),
)  # fmt: skip


@given(SETTINGS, OUTLINES)
def test_no_line_is_negative_and_the_total_is_that_of_the_moment(
    setting: Setting, outline: Outline
) -> None:
    found = memory(setting, outline, 1000)
    assert min(found.lines.values()) >= 0
    assert found.total == max(found.moments.values()) + 1000
    assert found.total >= sum(found.lines.values())


@given(SETTINGS, OUTLINES, st.integers(1, 8))
def test_more_sequences_never_need_less(setting: Setting, outline: Outline, more: int) -> None:
    larger = replace(setting, micro=setting.micro + more)
    assert memory(larger, outline).total >= memory(setting, outline).total


@given(SETTINGS, OUTLINES, st.integers(1, 4))
def test_more_ranks_never_hold_more_state(setting: Setting, outline: Outline, more: int) -> None:
    """Each has at most as many rows; padding goes to ranks that would have had none."""
    setting = replace(setting, strategy="full_shard", fsdp=Fsdp())
    larger = replace(setting, ranks_per_node=setting.ranks_per_node + more)
    assert all(
        few >= many for few, many in zip(held(setting, outline), held(larger, outline), strict=True)
    )


@given(SETTINGS, OUTLINES)
def test_ranks_together_hold_each_number_once(setting: Setting, outline: Outline) -> None:
    setting = replace(setting, strategy="full_shard")
    moments = 8 * outline.numel
    ranks = [held(setting, outline, rank).optimizer for rank in range(setting.num_ranks)]
    steps = 4 * len(list(outline.parameters)) * setting.num_ranks
    assert moments <= sum(ranks) <= moments + steps
