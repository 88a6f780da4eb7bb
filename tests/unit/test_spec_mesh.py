"""spec: the sizes of the mesh must multiply to the world, and no group crosses nodes unasked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.plan import make_plan
from orchestrator.profiles import embedded_profiles
from worlds import STRATEGIES, accepted, faults_of, trainer_json

# Options below `parallelism: {...}` of WORLD, other keys by --set; key at fault, message, fix.
REFUSED: list[tuple[str, list[str], str, str, str]] = [
    (
        "strategy: hybrid_shard, shard_group: 3",
        [],
        "shard_group",
        "3 does not divide the 8 ranks",
        "take shard_group: 2 or 4",
    ),
    (
        "strategy: hybrid_shard, shard_group: 8",
        [],
        "shard_group",
        "8 is all 8 ranks: no group is left to be a copy",
        "take shard_group: 2 or 4",
    ),
    (
        "strategy: hybrid_shard, shard_group: 2",
        ["resources.nodes=1", "resources.ranks_per_node=2"],
        "shard_group",
        "2 is all 2 ranks",
        "write strategy: full_shard",
    ),
    (
        "strategy: hybrid_shard, shard_group: 8",
        ["resources.nodes=4"],
        "shard_group",
        "a group of 8 ranks crosses nodes of 4",
        "take shard_group: 2 or 4, or allow it with fsdp.across_nodes: true",
    ),
    (
        "strategy: hybrid_shard, shard_group: 3",
        ["resources.nodes=3"],
        "shard_group",
        "a group of 3 ranks crosses nodes of 4",
        "take shard_group: 2 or 4, or allow",
    ),
    (
        "strategy: hybrid_shard, shard_group: 2",
        ["resources.nodes=4", "resources.ranks_per_node=1"],
        "shard_group",
        "a group of 2 ranks crosses nodes of 1",
        "allow it with fsdp.across_nodes: true",
    ),
    (
        "strategy: hybrid_shard, shard_group: 4, tensor: 2",
        ["resources.nodes=4"],
        "shard_group",
        "a group of 4 x tensor 2 ranks crosses nodes of 4",
        "take shard_group: 2, or",
    ),
    (
        "strategy: hybrid_shard, shard_group: 4, tensor: 2",
        [],
        "shard_group",
        "4 is all 4 ranks (8 / tensor 2)",
        "take shard_group: 2",
    ),
    (
        "strategy: hybrid_shard",
        ["resources.nodes=1"],
        "strategy",
        "has all ranks that share the model (4)",
        "write strategy: full_shard, or a group that leaves copies: shard_group: 2",
    ),
    (
        "strategy: hybrid_shard",
        ["resources.ranks_per_node=1"],
        "strategy",
        "a node here has one rank",
        "give shard_group with fsdp.across_nodes: true",
    ),
    ("strategy: hybrid_shard, tensor: 4", [], "strategy", "(ranks of a node: 4, tensor: 4)", ""),
    ("strategy: hybrid_shard, shard_group: 1", [], "shard_group", "1 is not at least 2", "from 2"),
    ("shard_group: 2", [], "shard_group", "hybrid_shard only, not with ddp", "remove it, or"),
    (
        "strategy: full_shard, shard_group: 4",
        [],
        "shard_group",
        "hybrid_shard only, not with full_shard",
        "strategy: hybrid_shard",
    ),
    (
        "strategy: full_shard, fsdp: {across_nodes: true}",
        [],
        "fsdp.across_nodes",
        "not with full_shard",
        "remove it",
    ),
    ("tensor: 2", [], "tensor", "2 with ddp: tensor parallelism goes with full_shard", "remove"),
    ("tensor: 2, strategy: no_shard", [], "tensor", "2 with no_shard", "full_shard"),
    (
        "tensor: 2, strategy: full_shard, fsdp: {version: 1}",
        [],
        "tensor",
        "2 with fsdp.version 1",
        "remove fsdp.version",
    ),
    (
        "tensor: 8, strategy: full_shard",
        [],
        "tensor",
        "8 does not divide the ranks of a node (4): a group would cross nodes",
        "take tensor: 2 or 4",
    ),
    (
        "tensor: 2, strategy: full_shard",
        ["resources.ranks_per_node=1"],
        "tensor",
        "2 does not divide the ranks of a node (1)",
        "remove tensor",
    ),
    (
        "tensor: 4, strategy: full_shard",
        ["train.model.heads=2"],
        "tensor",
        "4 does not divide the model's 2 attention heads",
        "take tensor: 2",
    ),
    (
        "tensor: 2, strategy: full_shard",
        ["train.model.heads=1"],
        "tensor",
        "attention heads",
        "remove tensor, or change heads",
    ),
    (
        "strategy: full_shard, fsdp: {reshard_after_forward: 3}",
        [],
        "fsdp.reshard_after_forward",
        "3 is no divisor between 1 and the 8 ranks",
        "take reshard_after_forward: 2 or 4",
    ),
    (
        "strategy: hybrid_shard, shard_group: 2, fsdp: {reshard_after_forward: 2}",
        [],
        "fsdp.reshard_after_forward",
        "2 is no divisor between 1 and the 2 ranks",
        "write true or false",
    ),
    ("strategy: dp", [], "strategy", "this job has 8 ranks", "strategy: ddp, or resources.nodes"),
    (
        "strategy: dp",
        ["resources.nodes=1", "resources.gpus_per_node=4", "resources.ranks_per_node=2"],
        "strategy",
        "this job has 2 ranks",
        "ranks_per_node: 1",
    ),
]


@pytest.mark.parametrize(("options", "sets", "key", "message", "fix"), REFUSED)
def test_sizes_that_do_not_fit(
    options: str, sets: list[str], key: str, message: str, fix: str
) -> None:
    (fault,) = faults_of(options, *sets)
    assert fault.key == f"parallelism.{key}"
    assert message in fault.message
    assert fix in fault.fix
    assert fault.position is not None


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ("strategy: ddp", None),
        ("strategy: full_shard, tensor: 2", None),
        ("strategy: hybrid_shard", 4),
        ("strategy: hybrid_shard, tensor: 2", 2),
        ("strategy: hybrid_shard, shard_group: 2", 2),
    ],
)
def test_the_group_is_a_node_by_default(options: str, group: int | None) -> None:
    assert trainer_json(options)["parallelism"]["shard_group"] == group


def test_a_group_crosses_nodes_when_that_is_asked_for() -> None:
    options = "strategy: hybrid_shard, shard_group: 8, fsdp: {across_nodes: true}"
    config = trainer_json(options, "resources.nodes=4")
    assert config["parallelism"]["shard_group"] == 8
    assert "across_nodes" not in config["parallelism"]["fsdp"]
    assert (config["num_ranks"], config["ranks_per_node"]) == (16, 4)


SMALL = st.integers(1, 8)


@settings(max_examples=300, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    nodes=SMALL,
    per_node=SMALL,
    tensor=st.sampled_from([1, 1, 2, 3, 4]),
    group=st.none() | st.integers(2, 16),
    across=st.booleans(),
)
def test_accepted_sizes_multiply_to_the_world(
    strategy: str, nodes: int, per_node: int, tensor: int, group: int | None, across: bool
) -> None:
    """And no group crosses nodes unless that was asked for."""
    parallelism: dict[str, Any] = {"strategy": strategy, "tensor": tensor, "shard_group": group}
    if across:
        parallelism["fsdp"] = {"across_nodes": True}
    data = {
        "name": "demo",
        "resources": {"nodes": nodes, "ranks_per_node": per_node},
        "parallelism": parallelism,
        "train": {
            "model": {"layers": 1, "heads": 12, "width": 12, "context": 8},
            "data": {"python_docs": True},
            "steps": 1,
        },
    }
    spec = accepted(data)
    if spec is None:
        return
    found = make_plan(spec, embedded_profiles().choose("local")).trainer["parallelism"]
    shard, tensor = found["shard_group"], found["tensor"]
    assert per_node % tensor == 0
    if strategy == "hybrid_shard":
        replicas, rest = divmod(nodes * per_node, shard * tensor)
        assert (rest, replicas > 1, shard > 1) == (0, True, True)
        assert across or per_node % (shard * tensor) == 0
    else:
        assert shard is None
        assert tensor == 1 or strategy in ("full_shard", "shard_grad_op")
