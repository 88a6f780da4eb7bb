"""plan: what becomes of parallelism in trainer.json, and that the trainer takes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile, embedded_profiles
from orchestrator.source import parse_document
from trainer.config import parse_config
from worlds import STRATEGIES, WORLD, accepted, faults_of, plan_of, spec_of, trainer_json

INTERVAL = ("every_steps", "every_s", "mtbf_s")


@pytest.mark.parametrize(
    ("options", "sets"),
    [
        ("strategy: full_shard", ["resources.nodes=1", "resources.ranks_per_node=1"]),
        ("strategy: no_shard, ddp: {bucket_cap_mb: 1, static_graph: true}", []),
        ("strategy: no_shard, fsdp: {version: 2}", []),
        ("strategy: no_shard, fsdp: {version: 1}, wrap: {by: size, min_parameters: 9}", []),
        ("strategy: hybrid_shard, fsdp: {reshard_after_forward: false}", []),
        ("strategy: full_shard, gradient_sync: each, buffers: bf16, reductions: bf16", []),
        ("strategy: full_shard, cpu_offload: true", ["train.batch.accumulation=4"]),
        ("strategy: hybrid_shard, check_replicas_every: 5", []),
        ("ddp: {hook: bf16}", ["resources.gpus_per_node=4"]),
        ("ddp: {hook: powersgd, powersgd_rank: 4}, precision: bf16", []),
        ("activation_checkpointing: selective, activation_checkpointing_every: 4", []),
        (
            "strategy: dp",
            ["resources.nodes=1", "resources.gpus_per_node=4", "resources.ranks_per_node=1"],
        ),
        ("cpu_offload: false, reductions: fp32", []),
    ],
)
def test_what_goes_together(options: str, sets: list[str]) -> None:
    assert faults_of(options, *sets) == ()


@pytest.mark.parametrize(
    ("options", "backend", "expected"),
    [
        ("strategy: ddp", "auto", "nccl"),
        ("strategy: full_shard, cpu_offload: true", "auto", "cpu:gloo,cuda:nccl"),
        ("strategy: full_shard, cpu_offload: true", "nccl", "cpu:gloo,cuda:nccl"),
        ("strategy: ddp", "gloo", "gloo"),
    ],
)
def test_what_lies_on_the_cpu_is_summed_by_gloo(options: str, backend: str, expected: str) -> None:
    sets = ["resources.gpus_per_node=4", f"network.backend={backend}", "network.interface=eth9"]
    plan = plan_of(options, *sets, cluster="slurm")
    assert plan.trainer["backend"] == expected
    interfaces = {name for name, value in plan.env if value.lstrip("=") == "eth9"}
    # Beside nccl each node sets gloo's.
    assert interfaces == {"NCCL_SOCKET_IFNAME" if "nccl" in expected else "GLOO_SOCKET_IFNAME"}


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], {"policy": "stop", "limit": 0}),
        (["train.nonfinite.policy=skip"], {"policy": "skip", "limit": 3}),
        (["train.nonfinite={policy: skip, limit: 9}"], {"policy": "skip", "limit": 9}),
    ],
)
def test_how_many_steps_may_be_left_out(sets: list[str], expected: dict[str, Any]) -> None:
    assert trainer_json("strategy: ddp", *sets)["nonfinite"] == expected


@pytest.mark.parametrize(
    ("sets", "interval"),
    [
        ([], (100, None, None)),
        (["checkpoint.every=1000"], (1000, None, None)),
        (["checkpoint.every=15m"], (None, 900, None)),
        (["checkpoint.every=1-12:00:00"], (None, 129600, None)),
        # 154 days for a node, and WORLD has two.
        (["checkpoint.every=auto"], (None, None, 77 * 86400)),
        (["checkpoint.every=auto", "resources.nodes=154"], (None, None, 86400)),
    ],
)
def test_one_of_steps_seconds_and_failures_says_when(
    sets: list[str], interval: tuple[float | None, ...]
) -> None:
    config = trainer_json("strategy: ddp", *sets)
    assert tuple(config["checkpoint"][key] for key in INTERVAL) == interval
    taken = parse_config(config, "trainer.json").checkpoint
    assert tuple(getattr(taken, key) for key in INTERVAL) == interval


def test_how_often_nodes_fail_comes_from_the_profile() -> None:
    fragile = ClusterProfile.model_validate(
        {"name": "a", "target": "slurm", "mean_time_between_failures": "10d"}
    )
    spec = spec_of("strategy: ddp", "checkpoint.every=auto")
    assert make_plan(spec, fragile).trainer["checkpoint"]["mtbf_s"] == 5 * 86400


@pytest.mark.parametrize(
    ("strategy", "auto"),
    [
        ("ddp", "full"),
        ("no_shard", "full"),
        ("full_shard", "sharded"),
        ("shard_grad_op", "sharded"),
        ("hybrid_shard", "sharded"),
    ],
)
def test_the_layout_follows_the_strategy_unless_it_is_given(strategy: str, auto: str) -> None:
    chosen = f"strategy: {strategy}"
    assert trainer_json(chosen)["checkpoint"]["format"] == auto
    for layout in ("full", "sharded", "both"):
        given = trainer_json(chosen, f"checkpoint.format={layout}")
        assert given["checkpoint"]["format"] == layout


def test_the_rest_of_what_is_said_about_checkpoints() -> None:
    sets = ["checkpoint={async: true, on_failure: continue, keep: 1, keep_best: false}"]
    sets += ["timeouts.checkpoint=2h", "timeouts.shutdown=10m", "train.logging.samples=true"]
    config = parse_config(trainer_json("strategy: ddp", *sets), "trainer.json")
    saving = config.checkpoint
    assert (saving.asynchronous, saving.on_failure, saving.timeout_s) == (True, "continue", 7200)
    assert (saving.keep, saving.keep_best, saving.resume) == (1, False, "auto")
    assert config.shutdown_timeout_s == 600
    assert config.logging.samples


FORMATS = st.sampled_from(["fp32", "bf16", "fp16"])


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Maps with at most two of these keys: more hardly ever go together."""
    return st.sets(st.sampled_from(sorted(values)), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: values[name] for name in names})
    )


OPTIONS = st.fixed_dictionaries(
    {"strategy": st.sampled_from(STRATEGIES)},
    optional={
        "fsdp": some(
            version=st.sampled_from([1, 2]),
            reshard_after_forward=st.sampled_from([None, True, False, 2, 4]),
            deferred_init=st.booleans(),
            prefetch_forward=st.integers(0, 2),
        ),
        "ddp": some(
            hook=st.sampled_from(["none", "fp16", "bf16", "powersgd"]),
            find_unused_parameters=st.booleans(),
        ),
        "wrap": some(by=st.sampled_from(["block", "class", "size"]), classes=st.just(["Block"])),
        "tensor": st.sampled_from([1, 2]),
        "precision": FORMATS,
        "gradient_sync": st.sampled_from(["last", "each"]),
        "reductions": FORMATS,
        "cpu_offload": st.booleans(),
        "activation_checkpointing": st.sampled_from(["none", "full", "selective"]),
    },
)


@settings(max_examples=400, deadline=None)
@given(options=OPTIONS, gpus=st.booleans(), one=st.booleans(), accumulation=st.integers(1, 2))
def test_the_trainer_takes_what_the_planner_lets_pass(
    options: dict[str, Any], gpus: bool, one: bool, accumulation: int
) -> None:
    """trainer.json is judged once more where it is read; that must never be the first to refuse."""
    per_node = 1 if one else 8
    data = parse_document(WORLD.encode(), "f").data | {"parallelism": options}
    data["resources"] = {"nodes": 1 if one else 2, "ranks_per_node": per_node}
    data["resources"]["gpus_per_node"] = per_node if gpus else 0
    data["train"]["batch"]["accumulation"] = accumulation
    spec = accepted(data)
    if spec is None:
        return
    config = make_plan(spec, embedded_profiles().choose("local")).trainer
    assert parse_config(config, "trainer.json").num_ranks == spec.num_ranks
