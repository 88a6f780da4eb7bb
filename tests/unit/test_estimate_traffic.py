"""traffic: the published figures of each strategy, and which groups meet between nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.outline import Outline, Parameter, Unit
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.estimate.traffic_whole import arrival, bucket_bytes
from orchestrator.spec import JobSpec

GB = 10**9
JOB: dict[str, Any] = {
    "name": "a",
    "train": {
        "model": {"preset": "nano"},
        "data": {"text": ["a"]},
        "steps": 10,
    },
}


def setting(**changes: Any) -> Setting:
    """Two nodes of eight ranks, DDP in fp32."""
    plain = Setting.of(JobSpec.model_validate(JOB))
    return replace(plain, **{"num_nodes": 2, "ranks_per_node": 8, **changes})


def ddp(**options: Any) -> Any:
    return setting().ddp.model_copy(update=options)


def fsdp(**options: Any) -> Any:
    return setting().fsdp.model_copy(update=options)


def model(numel: int, units: int = 10, root_share: float = 0.0) -> Outline:
    """A model of so many numbers, the same number in each unit."""
    root = round(numel * root_share)
    each = Parameter("weight", ((numel - root) // units, 1))
    rest = (Parameter("rest", (root, 1)),) if root else ()
    return Outline(
        units=tuple(Unit(f"blocks.{n}", (each,)) for n in range(units)),
        root=Unit("", rest),
        layers=0, heads=0, width=0, vocab_size=0, dropout=0.0, flops_per_token=None,
    )  # fmt: skip


SEVEN_B = model(7 * GB)
FULL_BF16 = {"strategy": "full_shard", "precision": "bf16"}
HYBRID_BF16 = {"strategy": "hybrid_shard", "shard_group": 8, "precision": "bf16"}


def of(kind: str, setting: Setting, outline: Outline) -> list[Transfer]:
    """Those of a kind but for the gradient norm's."""
    found = traffic(setting, outline).transfers
    return [one for one in found if one.kind == kind and one.payload_bytes > 4]


@pytest.mark.parametrize(
    ("changes", "gigabytes"),
    [
        ({}, 52.5),
        (FULL_BF16, 52.5),
        ({"strategy": "shard_grad_op", "precision": "bf16"}, 39.4),
        (HYBRID_BF16, 28.0),
    ],
)
def test_bytes_out_of_a_node(changes: dict[str, Any], gigabytes: float) -> None:
    """7 B parameters on 2 x 8: a flat ring leaves a node once, hybrid once for each part."""
    sent = traffic(setting(**changes), SEVEN_B)
    assert sent.node_bytes / GB == pytest.approx(gigabytes, abs=0.05)


def test_hybrid_keeps_the_rest_inside() -> None:
    sent = traffic(setting(**HYBRID_BF16), SEVEN_B)
    assert sent.sent_bytes("inside") / GB == pytest.approx(49.0, abs=0.05)
    assert sent.sent_bytes("between") / GB == pytest.approx(3.5, abs=0.05)


def test_full_sharding_sends_half_as_much_again_as_ddp() -> None:
    whole, spread = (
        traffic(setting(strategy=strategy), SEVEN_B).sent_bytes("between")
        for strategy in ("ddp", "full_shard")
    )
    assert spread / whole == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "gathered", "reduced"),
    [
        ({"fsdp": {"reshard_after_forward": True}}, 2.0, 1.0),
        ({}, 1.844, 1.0),
        ({"strategy": "shard_grad_op"}, 1.0, 1.0),
        ({"precision": "bf16"}, 0.922, 1.0),
        ({"precision": "bf16", "reductions": "bf16"}, 0.922, 0.5),
    ],
)
def test_payloads_in_units_of_the_parameters(
    changes: dict[str, Any], gathered: float, reduced: float
) -> None:
    """As they were measured, with a root that has 15.6 % of the parameters."""
    options = fsdp(**changes.pop("fsdp", {}))
    case = setting(**{"strategy": "full_shard", "fsdp": options, **changes})
    outline = model(10**6, root_share=0.156)
    unit = 4 * outline.numel
    gathers, reductions = of("all_gather", case, outline), of("reduce_scatter", case, outline)
    assert sum(one.payload_bytes for one in gathers) / unit == pytest.approx(gathered, rel=1e-3)
    assert sum(one.payload_bytes for one in reductions) / unit == pytest.approx(reduced, rel=1e-3)


def test_hybrid_sums_a_part_between_its_groups() -> None:
    case = setting(strategy="hybrid_shard", shard_group=4, num_nodes=2, ranks_per_node=4)
    (between,) = of("all_reduce", case, model(10**6))
    assert between.payload_bytes == 10**6
    assert (between.group_size, between.span, between.groups_per_node) == (2, "between", 4)


def test_buckets_of_seven_billion() -> None:
    mebibytes = 7 * GB * 4 // 2**20
    outline = model(mebibytes * 2**18, units=mebibytes)
    sizes = bucket_bytes(setting(), arrival(outline))
    assert len(sizes) == pytest.approx(1068, abs=2)
    assert sum(sizes) == pytest.approx(28 * GB, rel=1e-4)
    assert sizes[0] == 2**20
    assert set(sizes[1:-1]) == {25 * 2**20}


def test_another_cap_has_no_small_first_bucket() -> None:
    sizes = bucket_bytes(setting(ddp=ddp(bucket_cap_mb=10.0)), arrival(model(10**7, units=100)))
    assert all(size >= 10 * 2**20 for size in sizes[:-1])


@pytest.mark.parametrize(
    ("sync", "times"), [("last", 1), ("each", 4)],
)  # fmt: skip
def test_accumulation_sums_once_or_with_each(sync: str, times: int) -> None:
    case = setting(accumulation=4, gradient_sync=sync)
    (sums,) = of("all_reduce", case, SEVEN_B)
    assert sums.payload_bytes == times * 28 * GB
    assert sums.passes == times
    spread = replace(case, strategy="full_shard")
    gathers, (reduced,) = of("all_gather", spread, SEVEN_B), of("reduce_scatter", spread, SEVEN_B)
    assert [one.payload_bytes for one in gathers] == [4 * 28 * GB] * 2
    assert reduced.payload_bytes == times * 28 * GB


def test_powersgd_sends_two_factors_of_a_matrix_and_vectors_whole() -> None:
    unit = Unit("a", (Parameter("matrix", (100, 50)), Parameter("vector", (100,))))
    outline = replace(model(0), units=(unit,))
    case = setting(ddp=ddp(hook="powersgd", powersgd_rank=2))
    (sent,) = of("all_reduce", case, outline)
    assert sent.payload_bytes == 4 * (2 * (100 + 50) + 100)
    # Where the factors would be no smaller than half, the matrix goes as it is.
    case = setting(ddp=ddp(hook="powersgd", powersgd_rank=20))
    (sent,) = of("all_reduce", case, outline)
    assert sent.payload_bytes == 4 * 5100


def test_what_goes_with_gradients_under_ddp() -> None:
    outline = replace(model(1000), buffer_bytes=400)
    (buffers,) = of("broadcast", setting(), outline)
    assert buffers.payload_bytes == 400
    assert of("broadcast", setting(ddp=ddp(broadcast_buffers=False)), outline) == []
    case = setting(ddp=ddp(find_unused_parameters=True))
    assert sorted(one.payload_bytes for one in of("all_reduce", case, outline)) == [40, 4000]


def test_a_hook_halves_the_bytes() -> None:
    (sent,) = of("all_reduce", setting(ddp=ddp(hook="fp16")), SEVEN_B)
    assert sent.payload_bytes == 14 * GB


def test_frozen_parameters_are_gathered_and_not_summed() -> None:
    frozen = Unit("a", (Parameter("w", (1600,), trainable=False),))
    outline = replace(model(16_000), root=frozen)
    case = setting(strategy="full_shard")
    forward, _backward = of("all_gather", case, outline)
    (reduced,) = of("reduce_scatter", case, outline)
    assert forward.payload_bytes - reduced.payload_bytes == 4 * 1600
    (whole,) = of("all_reduce", setting(), outline)
    assert whole.payload_bytes == 4 * 16_000


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({"strategy": "full_shard"}, (16, "between", 8, 1)),
        ({"strategy": "full_shard", "num_nodes": 1}, (8, "inside", 8, 1)),
        ({"strategy": "full_shard", "tensor": 2}, (8, "between", 4, 2)),
        ({"strategy": "hybrid_shard", "shard_group": 8}, (8, "inside", 8, 1)),
        ({"strategy": "hybrid_shard", "shard_group": 4}, (4, "inside", 4, 2)),
        ({"strategy": "hybrid_shard", "shard_group": 16, "num_nodes": 4}, (16, "between", 8, 1)),
        ({"strategy": "hybrid_shard", "shard_group": 4, "tensor": 2}, (4, "inside", 4, 2)),
    ],
)
def test_where_a_group_lies(changes: dict[str, Any], group: tuple[int, str, int, int]) -> None:
    gather = of("all_gather", setting(**changes), SEVEN_B)[0]
    found = (gather.group_size, gather.span, gather.ranks_per_node, gather.groups_per_node)
    assert found == group


def test_a_group_over_some_nodes_sends_less_between_them_than_one_over_all() -> None:
    """Of a free shape of mesh: two nodes share a copy, and pairs of such copies are summed."""
    flat = setting(num_nodes=4, **FULL_BF16)
    pairs = replace(flat, strategy="hybrid_shard", shard_group=16)
    assert traffic(pairs, SEVEN_B).transfers[-2].what == "gradients between copies"
    parts = [of("all_reduce", pairs, SEVEN_B)[0], *of("all_gather", pairs, SEVEN_B)]
    assert [part.group_size for part in parts] == [2, 16, 16]
    assert parts[0].node_bytes == pytest.approx(28 * GB / 2)


def test_reshard_over_a_smaller_group_gathers_inside_the_node_again() -> None:
    case = setting(strategy="full_shard", fsdp=fsdp(reshard_after_forward=8))
    forward, backward = of("all_gather", case, SEVEN_B)
    assert (forward.span, backward.span, backward.group_size) == ("between", "inside", 8)


def test_one_rank_and_dp_send_nothing() -> None:
    one = setting(num_nodes=1, ranks_per_node=1)
    for strategy in ("ddp", "full_shard", "shard_grad_op", "no_shard"):
        assert traffic(replace(one, strategy=strategy), SEVEN_B).transfers == ()
    assert traffic(setting(strategy="dp"), SEVEN_B).transfers == ()


@given(
    strategy=st.sampled_from(["ddp", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard"]),
    version=st.sampled_from([1, 2]),
    nodes=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    numel=st.integers(1, 10**6),
)
def test_more_micro_batches_never_send_less(
    strategy: str, version: int, nodes: int, accumulation: int, numel: int
) -> None:
    group = 8 if strategy == "hybrid_shard" else None
    case = setting(
        strategy=strategy, num_nodes=nodes, shard_group=group,
        fsdp=fsdp(version=version), accumulation=accumulation,
    )  # fmt: skip
    outline = model(numel, units=1)
    more = replace(case, accumulation=accumulation + 1)
    for one in traffic(case, outline).transfers:
        assert 0 <= one.edge_bytes <= one.payload_bytes
        assert one.sent_bytes >= 0
    sums = [
        sum(one.sent_bytes for one in traffic(each, outline).transfers) for each in (case, more)
    ]
    assert sums[0] <= sums[1]
