"""The parts of parallelism by themselves: mesh, units, formats, what does not go together."""

from __future__ import annotations

import datetime
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models import Stack, Words
from ranks import run_ranks
from runs import Run, _set_environ, configuration
from trainer.config import TrainerConfig, WrapConfig, parse_config
from trainer.contract import ConfigurationError, Contract
from trainer.main import process_group
from trainer.materialize import assert_tied, materialize, ties_of
from trainer.mesh import build_mesh, sizes_of
from trainer.model import GPT, build_hollow, build_whole, compile_blocks, first_value
from trainer.precision import GROWTH_INTERVAL, LossScaler, cast_buffers
from trainer.recompute import runner_of
from trainer.wrapping import units_of

FULL = {"parallelism__strategy": "full_shard"}
HYBRID = {"parallelism__strategy": "hybrid_shard", "parallelism__shard_group": 2}


def config(**changes: Any) -> TrainerConfig:
    return parse_config(configuration(**changes), "test")


# The mesh.


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_the_sizes_of_a_mesh_are_all_ranks_or_it_is_refused(
    ranks: int, group: int, tensor: int
) -> None:
    changes = HYBRID | {"num_ranks": ranks, "parallelism__shard_group": group}
    changes |= {"parallelism__tensor": tensor}
    if ranks % (group * tensor):
        with pytest.raises(ConfigurationError, match="sizes that multiply to num_ranks"):
            config(**changes)
        return
    sizes = sizes_of(config(**changes))
    assert (sizes.shard, sizes.tensor) == (group, tensor)
    assert sizes.num_ranks == ranks
    assert sizes.num_data_ranks == ranks // tensor


Seen = tuple[list[int], tuple[str, ...], list[datetime.timedelta]]


def mesh_of_8(run: Run) -> Seen:
    """This rank's place, the mesh's names, and how long its groups wait."""
    parsed = config(num_ranks=8, step_timeout_s=77, parallelism__tensor=2, **HYBRID)
    _set_environ(run, attempt=1)
    with process_group(parsed, Contract.from_environ()):
        mesh = build_mesh(sizes_of(parsed), torch.device("cpu"), parsed.step_timeout_s)
        names = mesh.mesh_dim_names or ()
        backends = [mesh.get_group(name)._get_backend(torch.device("cpu")) for name in names]
        waits = [backend.options._timeout for backend in backends]
        return list(mesh.get_coordinate() or ()), names, waits


def test_what_talks_most_lies_closest_and_no_group_waits_longer(tmp_path: Path) -> None:
    seen: list[Seen] = run_ranks(8, mesh_of_8, Run(tmp_path))
    assert [place for place, _, _ in seen] == [[a, b, c] for a in (0, 1) for b in (0, 1)
                                               for c in (0, 1)]  # fmt: skip
    assert {names for _, names, _ in seen} == {("replicate", "shard", "tensor")}
    assert {wait for *_, waits in seen for wait in waits} == {datetime.timedelta(seconds=77)}


# What does not go together.


@pytest.mark.case("T09")
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"strategy": "hybrid_shard"}, "shard_group: is null"),
        ({"shard_group": 2}, "shard_group: is 2 (allowed with ddp: null)"),
        ({"strategy": "hybrid_shard", "shard_group": 3}, "no multiple of shard_group 3"),
        ({"strategy": "dp"}, "num_ranks: is 4 (allowed with strategy dp"),
        ({"tensor": 2}, "tensor: is 2, which goes with full_shard"),
        ({"strategy": "full_shard", "tensor": 4}, "does not divide the 2 heads"),
        ({"strategy": "full_shard", "tensor": 2, "fsdp__version": 1}, "of fsdp.version 2 only"),
        ({"strategy": "full_shard", "fsdp__reshard_after_forward": 3}, "is 3 (allowed: true"),
        ({"strategy": "shard_grad_op", "fsdp__reshard_after_forward": True}, "shard_grad_op is"),
        ({"cpu_offload": True}, "needs a strategy that FSDP runs, not ddp"),
        ({"strategy": "full_shard", "cpu_offload": True, "precision": "fp16"}, "with precision"),
        ({"strategy": "full_shard", "cpu_offload": True, "fsdp__version": 1}, "on the CPU"),
        ({"ddp__hook": "bf16"}, "bf16 fails on gloo"),
        ({"ddp__hook": "powersgd", "precision": "fp16"}, "with precision fp16"),
        ({"ddp__hook": "powersgd", "gradient_sync": "each"}, "with gradient_sync each"),
        ({"strategy": "full_shard", "wrap__by": "class"}, "wrap.classes: is empty"),
        ({"activation_checkpointing": "full", "ddp__find_unused_parameters": True}, "ready twice"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], fault: str) -> None:
    given = {f"parallelism__{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigurationError) as caught:
        config(num_ranks=4, **given)
    assert fault in str(caught.value)
    assert "1 fault(s)" in str(caught.value)


@pytest.mark.case("T03")
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model__dropout": 0.1, "parallelism__tensor": 2}, "would draw dropout twice"),
        ({"model__factory": "models:words", "parallelism__tensor": 2}, "built-in model only"),
        (
            {
                "parallelism__cpu_offload": True, "parallelism__fsdp__version": 1,
                "device": "cuda", "backend": "cpu:gloo,cuda:nccl", "batch__accumulation": 2,
            },
            "loses gradients",
        ),
        (
            {
                "parallelism__fsdp__version": 1, "parallelism__precision": "bf16",
                "batch__accumulation": 2,
            },
            "above 1: each)",
        ),
        (
            {"parallelism__cpu_offload": True, "device": "cuda", "backend": "nccl"},
            'backend must be "cpu:gloo,cuda:nccl"',
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_with_sharding(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(num_ranks=4, **FULL, **changes)
    assert fault in str(caught.value)


def test_powersgd_would_keep_what_is_skipped() -> None:
    with pytest.raises(ConfigurationError, match=r"powersgd, which .* with nonfinite\.policy skip"):
        config(parallelism__ddp__hook="powersgd", nonfinite={"policy": "skip", "limit": 3})


def test_dp_would_weigh_gpus_alike_where_not_all_tokens_count() -> None:
    with pytest.raises(ConfigurationError, match=r"data\.ignore_token: is 0 \(allowed with .* dp"):
        config(num_ranks=1, parallelism__strategy="dp", data__ignore_token=0)


@pytest.mark.parametrize("value", [None, True, False, 2])
def test_the_three_kinds_of_resharding(value: bool | int | None) -> None:
    parsed = config(num_ranks=4, **FULL, parallelism__fsdp__reshard_after_forward=value)
    assert parsed.parallelism.fsdp.reshard_after_forward is value


# Units.


def wrap(by: str, classes: tuple[str, ...] = (), min_parameters: int = 1) -> WrapConfig:
    return WrapConfig(by, classes, min_parameters)  # type: ignore[arg-type]


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(2, 2)
        self.inside = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.list = nn.ModuleList([nn.Sequential(*self.inside)])


def test_units_of_the_built_in_model_are_its_blocks() -> None:
    model = build_hollow(config(), 256)
    assert isinstance(model, GPT)
    assert units_of(model, wrap("block")) == list(model.blocks)


def test_units_of_a_users_model_are_those_of_its_list() -> None:
    model = Nested()
    assert units_of(model, wrap("block")) == [model.list[0]]


def test_units_of_a_users_model_are_those_of_all_outermost_lists() -> None:
    """Not a list inside a block, nor what has no parameters; lists in a list are gone through."""
    encoder, decoder, a, b = Nested(), nn.Module(), nn.Linear(3, 3), nn.Linear(2, 2)
    decoder.layers = nn.ModuleList([Nested(), nn.ReLU(), nn.ModuleList([a, nn.ModuleList([b])])])
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    assert units_of(model, wrap("block")) == [encoder.list[0], decoder.layers[0], a, b]


def test_units_by_class_come_from_the_inside_out() -> None:
    model = Nested()
    units = units_of(model, wrap("class", ("Sequential", "Linear")))
    assert units == [model.small, *model.inside, model.list[0]]


def test_units_by_size_hold_as_much_without_the_units_inside_them() -> None:
    model = Nested()
    assert units_of(model, wrap("size", min_parameters=100)) == [model.list[0]]
    assert units_of(model, wrap("size", min_parameters=72)) == model.inside
    assert units_of(model, wrap("size", min_parameters=1000)) == []


def test_units_by_size_leave_ties_whole() -> None:
    model = Stack()
    assert units_of(model, wrap("size", min_parameters=1)) == list(model.blocks)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (Words(), wrap("block"), "no nn.ModuleList .* there are: Embedding, Linear"),
        (Words(), wrap("class", ("Blok",)), r"class Blok \(allowed: Embedding, Linear\)"),
        (Stack(), wrap("class", ("Embedding",)), "embedding.weight and head.weight are one"),
    ],
)
def test_units_that_cannot_be(model: nn.Module, given: WrapConfig, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        units_of(model, given)


# Building.


def test_a_first_value_depends_on_name_and_seed_alone() -> None:
    shape = torch.Size([3, 4])
    value = first_value("blocks.0.mlp_inward.weight", shape, 2, seed=7)
    torch.rand(5)
    assert torch.equal(first_value("blocks.0.mlp_inward.weight", shape, 2, seed=7), value)
    assert not torch.equal(first_value("blocks.1.mlp_inward.weight", shape, 2, seed=7), value)
    assert not torch.equal(first_value("blocks.0.mlp_inward.weight", shape, 2, seed=8), value)


def test_first_values_have_their_spread() -> None:
    model = build_whole(config(model__width=128), 256)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert float(values["token.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(values["blocks.1.mlp_outward.weight"].std()) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(values["blocks.0.mlp_norm.weight"], torch.ones(128))
    assert not values["blocks.0.attention.inward.bias"].any()


@pytest.mark.case("T27")
def test_memory_keeps_ties() -> None:
    with torch.device("meta"):
        model = Stack()
    ties = ties_of(model)
    assert [[place.path for place in held] for held in ties] == [["embedding", "head"]]
    materialize(model, torch.device("cpu"))
    assert model.head.weight is model.embedding.weight
    assert not model.head.weight.is_meta
    model.head.weight = nn.Parameter(model.head.weight.clone())
    with pytest.raises(RuntimeError, match=r"the tie of embedding\.weight, head\.weight"):
        assert_tied(model, ties)


def test_which_blocks_are_recomputed() -> None:
    every_second = config(parallelism__activation_checkpointing="full",
                          parallelism__activation_checkpointing_every=2)  # fmt: skip
    runners = [runner_of(block, every_second.parallelism) is not None for block in range(5)]
    assert runners == [False, True, False, True, False]


FORWARD = ("addmm", "_scaled_dot_product_flash_attention_for_cpu", "native_layer_norm")


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How often each operator ran while it was active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def forward_operators(kind: str) -> list[int]:
    """How often the forward operators ran in one forward and backward pass of two blocks."""
    model = build_whole(config(parallelism__activation_checkpointing=kind), 256)
    tokens = torch.arange(34).view(2, 17)
    with Counted() as counted:
        torch.autograd.backward(model(tokens[:, :-1], tokens[:, 1:]))
    return [counted.counts[name] for name in FORWARD]


def test_what_is_computed_again() -> None:
    """4 products, an attention and 2 norms in a block; one norm more in the model."""
    assert run_ranks(1, forward_operators, "none") == [[8, 2, 5]]
    assert run_ranks(1, forward_operators, "full") == [[14, 4, 9]]  # not what ends a block
    assert run_ranks(1, forward_operators, "selective") == [[8, 2, 9]]


def compiled_modules() -> list[list[str]]:
    """Names of the modules that are compiled: of the built-in model, and of a user's."""
    models = [build_hollow(config(), 256), Words()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what torch itself imports
        for model in models:
            compile_blocks(model)
    return [
        [name for name, module in model.named_modules() if module._compiled_call_impl is not None]
        for model in models
    ]


def test_the_built_in_model_is_compiled_block_by_block() -> None:
    assert run_ranks(1, compiled_modules) == [[["blocks.0", "blocks.1"], [""]]]


# Number formats.


def test_the_scale_of_the_loss() -> None:
    scaler = LossScaler(torch.device("cpu"))
    first = scaler.scale.item()
    for norm in (torch.inf, torch.nan, 1.0):
        scaler.update(torch.tensor(norm))
    assert scaler.scale.item() == first / 4
    for _ in range(GROWTH_INTERVAL - 2):
        scaler.update(torch.tensor(1.0))
    other = LossScaler(torch.device("cpu"))
    other.load(scaler.state())
    assert other.scale.item() == first / 4
    for each in (scaler, other):
        each.update(torch.tensor(1.0))
        assert each.scale.item() == first / 2
        each.update(torch.tensor(1.0))
        assert each.scale.item() == first / 2


def test_buffers_take_their_format_and_counts_keep_theirs() -> None:
    model = nn.BatchNorm1d(4)
    cast_buffers(model, None)
    assert model.running_mean is not None
    assert model.running_mean.dtype == torch.float32
    cast_buffers(model, "bf16")
    assert model.running_mean.dtype == torch.bfloat16
    assert model.num_batches_tracked is not None
    assert model.num_batches_tracked.dtype == torch.int64
