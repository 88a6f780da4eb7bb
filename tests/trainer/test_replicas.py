"""Replicas whose bits differ are found, and those that never had to be equal are not compared."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ranks import grouped, run_ranks
from trainer import replicas
from trainer.contract import ConfigurationError
from trainer.replicas import ReplicasDiffer, check, hash_of

numbers = st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20)


@given(numbers, st.data())
def test_a_changed_bit_changes_the_hash(values: list[float], data: st.DataObject) -> None:
    tensor = torch.tensor(values)
    before = hash_of(tensor)
    index = data.draw(st.integers(0, len(values) - 1))
    bit = data.draw(st.integers(0, 31))
    bits = tensor.view(torch.int32)
    bits[index] ^= -(1 << 31) if bit == 31 else 1 << bit
    assert hash_of(tensor) != before


@given(numbers, st.data())
def test_values_that_change_places_change_the_hash(
    values: list[float], data: st.DataObject
) -> None:
    first, second = data.draw(st.tuples(*[st.integers(0, len(values) - 1)] * 2))
    one = torch.tensor(values)
    other = one.clone()
    other[first], other[second] = one[second].clone(), one[first].clone()
    same = torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert (hash_of(one) == hash_of(other)) == same


def test_a_large_tensor_is_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(10, 7).t()  # not contiguous
    whole = hash_of(value)
    monkeypatch.setattr(replicas, "CHUNK", 8)
    assert hash_of(value) == whole
    for dtype in (torch.bfloat16, torch.float64, torch.bool, torch.int64):
        assert hash_of(value.to(dtype)).dtype == torch.int64


def test_zero_and_minus_zero_are_not_the_same_bits() -> None:
    assert hash_of(torch.tensor(0.0)) != hash_of(torch.tensor(-0.0))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 5))


def checked(wrap: str, corrupt: int | None) -> str:
    module = wrapped(wrap)
    if corrupt == dist.get_rank():
        local = list(module.parameters())[2].detach()
        local = local.to_local() if isinstance(local, DTensor) else local
        local.view(-1)[0] += 1
    try:
        check(module.named_parameters(), 7)
    except (ReplicasDiffer, ConfigurationError) as error:
        return f"{type(error).__name__}: {error}"
    return "equal"


def wrapped(wrap: str) -> nn.Module:
    module = model()
    if wrap != "none":
        shape, names = ((2, 2), ("replicate", "shard")) if wrap == "hybrid" else ((4,), ("shard",))
        fully_shard(module, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return module


def test_equal_replicas() -> None:
    assert run_ranks(4, grouped, checked, "none", None) == ["equal"] * 4
    assert run_ranks(4, grouped, checked, "hybrid", None) == ["equal"] * 4


def test_one_rank_alone_has_nothing_to_compare() -> None:
    assert run_ranks(1, grouped, checked, "none", None) == ["equal"]


def test_the_odd_rank_and_the_first_parameter_are_named() -> None:
    told = run_ranks(4, grouped, checked, "none", 2)
    assert len(set(told)) == 1
    assert told[0].startswith("ReplicasDiffer: after step 7 rank 2 (")
    assert "held other bits of 1.weight than rank 0, 1, 3" in told[0]


def test_hybrid_replicas_are_compared_by_shard() -> None:
    told = run_ranks(4, grouped, checked, "hybrid", 3)
    assert len(set(told)) == 1
    assert "after step 7 rank 3 (" in told[0]
    assert "held other bits of 1.weight than rank 1;" in told[0]


def test_where_nothing_is_replicated_there_is_nothing_to_check() -> None:
    told = run_ranks(4, grouped, checked, "full", None)
    assert told[0].startswith("ConfigurationError: parallelism.check_replicas_every: leave it out")


def shards() -> list[str]:
    """A plain tensor's part is told by number: two ranks with one each, then both with the same."""
    rank = dist.get_rank()
    value: list[tuple[str, Tensor]] = [("weight", torch.full((3,), float(rank)))]
    said = []
    for shard in (rank, 0):
        try:
            check(value, 1, shard)
        except (ReplicasDiffer, ConfigurationError) as error:
            said.append(type(error).__name__)
    return said


def test_the_number_of_a_plain_shard() -> None:
    assert run_ranks(2, grouped, shards) == [["ConfigurationError", "ReplicasDiffer"]] * 2
