"""spec: a range of nodes, and the numbers of nodes that keep the global batch."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile, embedded_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import JobSpec, json_schema, resolve_job
from trainer.config import parse_config
from trainer.elastic import for_world
from worlds import WORLD

RANGE = "resources.nodes={min: 1, max: 4}"
ACROSS = "{strategy: hybrid_shard, shard_group: 8, fsdp: {across_nodes: true}}"
OTHER_BATCH = "train.batch: {micro: 4, accumulation: 2}, with which 2 nodes can run it too"


def job(*sets: str, text: str = WORLD) -> JobSpec:
    return resolve_job(parse_document(text.encode(), "job.yaml"), sets=sets).spec


def faults(*sets: str, text: str = WORLD) -> tuple[Fault, ...]:
    with pytest.raises(FaultsError) as error:
        job(*sets, text=text)
    return error.value.faults


@pytest.mark.parametrize(
    ("sets", "sizes"),
    [
        (["resources.nodes=3"], (3,)),
        ([RANGE], (1, 2, 4)),
        (["resources.nodes={min: 2, max: 4}"], (2, 4)),
        (["resources.nodes={min: 1, max: 6}", "train.batch.accumulation=2"], (1, 2, 3, 4, 6)),
        # Groups of 2 nodes x 4 ranks: one node has half of a group.
        ([RANGE, f"parallelism={ACROSS}"], (2, 4)),
        # The one group that is left has no copy: full_shard.
        ([RANGE, "parallelism.strategy=hybrid_shard"], (1, 2, 4)),
        ([RANGE, "parallelism={strategy: full_shard, fsdp: {reshard_after_forward: 4}}"], (2, 4)),
        ([RANGE, "parallelism={strategy: full_shard, tensor: 2}"], (1, 2, 4)),
    ],
)  # fmt: skip
def test_sizes_keep_the_batch_and_fit_the_mesh(sets: list[str], sizes: tuple[int, ...]) -> None:
    assert job(*sets).node_sizes == sizes


REFUSED = [
    ("{min: 3, max: 2}", "min", "3 is above max, which is 2", "write min: 2 and max: 3"),
    ("{min: 2, max: 2}", "min", "2 is max too", "write nodes: 2"),
    ("{min: 2, max: 3}", "min", "only 3 can run this job", f"write nodes: 3, or {OTHER_BATCH}"),
    ("{min: 0, max: 3}", "min", "0 is not at least 1", "whole number from 1"),
    ("{min: 1, max: 10001}", "max", "10001 is not at most 10000", "whole number from 1"),
    ("{min: 1, max: two}", "max", 'a whole number belongs here, not "two"', "whole number"),
    ("{min: 1, max: 2, mean: 1}", "mean", "unknown key", ""),
    ("[1, 2]", "", "a whole number belongs here, not a list", "range, as {min: 1, max: 2}"),
    ("0", "", "0 is not at least 1", "range"),
    ("10001", "", "10001 is not at most 10000", "range"),
    ("true", "", "a whole number belongs here, not true", "range"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "key", "message", "fix"), REFUSED)
def test_a_wrong_range_is_told_at_its_place(nodes: str, key: str, message: str, fix: str) -> None:
    text = WORLD.replace("nodes: 2", f"nodes: {nodes}")
    (fault,) = faults(text=text)
    assert fault.key == f"resources.nodes{'.' if key else ''}{key}"
    assert fault.position is not None
    assert fault.position.line == 2
    assert message in fault.message
    assert fix in fault.fix


def test_half_a_range_lacks_the_other_half() -> None:
    (fault,) = faults(text=WORLD.replace("nodes: 2", "nodes: {max: 2}"))
    assert (fault.key, fault.message) == ("resources.nodes.min", "required, and not given")


def test_a_layer_may_change_one_end_or_all() -> None:
    text = WORLD.replace("nodes: 2", "nodes: {min: 1, max: 2}")
    assert job("resources.nodes.max=4", text=text).node_sizes == (1, 2, 4)
    assert job("resources.nodes=3", text=text).node_sizes == (3,)
    (fault,) = faults("resources.nodes.min=5", text=text)
    assert (fault.file, fault.key) == ("--set", "resources.nodes.min")


def test_a_strategy_that_fits_one_size_is_named() -> None:
    spread = "parallelism={strategy: full_shard, fsdp: {reshard_after_forward: 4}}"
    (fault,) = faults("resources.nodes={min: 1, max: 2}", spread)
    assert "1 node: 4 is no divisor between 1 and the 4 ranks" in fault.message
    assert fault.fix == "write nodes: 2"


def test_submitit_has_one_number_of_nodes() -> None:
    (fault,) = faults(RANGE, "launcher=submitit", "resources.time_limit=1h")
    assert fault.key == "launcher"
    assert "resources.nodes: 4" in fault.fix


def test_the_schema_knows_both_forms() -> None:
    data: dict[str, Any] = {"name": "a", "train": {"model": {"preset": "nano"}, "steps": 1,
                                                   "data": {"python_docs": True}}}  # fmt: skip
    for nodes in (2, {"min": 1, "max": 2}):
        jsonschema.validate(data | {"resources": {"nodes": nodes}}, json_schema())
    for nodes in (0, {"min": 1}, {"min": 1, "max": 2, "x": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data | {"resources": {"nodes": nodes}}, json_schema())


@settings(max_examples=30, deadline=None)
@given(
    more=st.integers(1, 8),
    accumulation=st.integers(1, 6),
    strategy=st.sampled_from(["ddp", "full_shard", "hybrid_shard"]),
)
def test_the_trainer_goes_with_each_size_that_is_rendered(
    more: int, accumulation: int, strategy: str
) -> None:
    # With min 1 there is always a second size.
    sets = [f"resources.nodes={{min: 1, max: {1 + more}}}"]
    sets += [f"train.batch.accumulation={accumulation}", f"parallelism.strategy={strategy}"]
    plan = make_plan(job(*sets), embedded_profiles().choose("local"))
    config = parse_config(json.loads(render(plan).files["trainer.json"]), "test")
    assert config.world_sizes[0] < config.world_sizes[-1] == config.num_ranks
    for world_size in config.world_sizes:
        batch = for_world(config, world_size).batch
        assert batch.accumulation * world_size == accumulation * config.num_ranks


def test_a_loopback_interface_goes_with_no_range() -> None:
    with pytest.raises(UserError, match="4 nodes"):
        make_plan(job(RANGE, "network.interface=lo"), ClusterProfile(name="x", target="slurm"))
