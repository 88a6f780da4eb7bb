"""spec: which options go with which strategy and with one another, and what is said if not."""

from __future__ import annotations

import pytest

from orchestrator.spec import find_field
from orchestrator.spec.suggest import VALUE_ALIASES
from worlds import WORLD, faults_of

# Options below `parallelism: {...}` of WORLD, other keys by --set; key at fault, message, fix.
REFUSED: list[tuple[str, list[str], str, str, str]] = [
    # Options of a wrapper that is not used.
    (
        "strategy: full_shard, ddp: {bucket_cap_mb: 10}",
        [],
        "ddp.bucket_cap_mb",
        "an option of DistributedDataParallel, which full_shard does not use",
        "strategy: ddp",
    ),
    # One mistake makes one fault: what the option itself would be told is left out.
    ("strategy: full_shard, ddp: {hook: bf16}", [], "ddp.hook", "full_shard does not use", ""),
    (
        "strategy: full_shard, activation_checkpointing: full, ddp: {broadcast_buffers: true}",
        [],
        "ddp.broadcast_buffers",
        "full_shard does not use",
        "",
    ),
    (
        "strategy: no_shard, fsdp: {version: 1}, ddp: {static_graph: true}",
        [],
        "ddp.static_graph",
        "which no_shard of fsdp.version 1 does not use",
        "remove it",
    ),
    ("fsdp: {version: 2}", [], "fsdp.version", "hybrid_shard only, not with ddp", "remove it"),
    ("fsdp: {deferred_init: false}", [], "fsdp.deferred_init", "not with ddp", "remove it"),
    (
        "strategy: no_shard, fsdp: {prefetch_forward: 2}",
        [],
        "fsdp.prefetch_forward",
        "not with no_shard of fsdp.version 2",
        "remove it",
    ),
    ("wrap: {by: size}", [], "wrap.by", "not with ddp", "remove it"),
    ("cpu_offload: true", [], "cpu_offload", "not with ddp", "remove it"),
    (
        "cpu_offload: true, strategy: no_shard, fsdp: {version: 1}",
        ["resources.gpus_per_node=4"],
        "cpu_offload",
        "not with no_shard of fsdp.version 1",
        "remove it",
    ),
    ("buffers: bf16", [], "buffers", "not with ddp", "remove it"),
    ("reductions: bf16", [], "reductions", "ddp sums gradients in fp32", "ddp.hook"),
    ("strategy: no_shard, reductions: fp16", [], "reductions", "no_shard sums", "ddp.hook"),
    # What people know from elsewhere.
    ("strategy: FULL_SHARD", [], "strategy", "none of ddp, full_shard", '"full_shard"'),
    ("strategy: HYBRID_SHARD", [], "strategy", "none of", '"hybrid_shard"'),
    ("strategy: zero2", [], "strategy", "none of", '"shard_grad_op"'),
    ("strategy: ZeRO-3", [], "strategy", "none of", '"full_shard"'),
    ("strategy: _HYBRID_SHARD_ZERO2", [], "strategy", "none of", '"hybrid_shard"'),
    ("precision: bf16-mixed", [], "precision", "none of fp32, bf16, fp16", '"bf16"'),
    ("fsdp_offload_params: true", [], "fsdp_offload_params", "unknown", "parallelism.cpu_offload"),
    ("fsdp_version: 2", [], "fsdp_version", "unknown key", "parallelism.fsdp.version"),
    ("tp_size: 2", [], "tp_size", "unknown key", "parallelism.tensor"),
]


@pytest.mark.parametrize(("options", "sets", "key", "message", "fix"), REFUSED)
def test_what_does_not_go_together(
    options: str, sets: list[str], key: str, message: str, fix: str
) -> None:
    (fault,) = faults_of(options, *sets)
    assert fault.key == f"parallelism.{key}"
    assert message in fault.message
    assert fix in fault.fix
    assert fault.position is not None


FACTORY = WORLD.replace(
    "{layers: 4, heads: 4, width: 64, context: 32, dropout: 0.0}",
    "{factory: 'pkg:make', context: 32}",
)


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ("activation_checkpointing: full", "activation_checkpointing", "a factory of yours"),
        ("activation_checkpointing: selective", "activation_checkpointing", "a factory of yours"),
        ("tensor: 2, strategy: full_shard", "tensor", "only the bundled GPT"),
    ],
)
def test_what_a_model_of_the_users_cannot_have(options: str, key: str, message: str) -> None:
    (fault,) = faults_of(options, text=FACTORY)
    assert fault.key == f"parallelism.{key}"
    assert message in fault.message


def test_a_faulty_key_brings_no_second_fault() -> None:
    options = "strategy: hybrid_shard, shard_group: three, tensor: x, ddp: {bucket_cap_mb: 1}"
    keys = [f.key for f in faults_of(options)]
    assert keys == [
        "parallelism.shard_group",
        "parallelism.tensor",
        "parallelism.ddp.bucket_cap_mb",
    ]


def test_what_is_proposed_for_other_names_can_be_written() -> None:
    for path, names in VALUE_ALIASES.items():
        allowed = find_field(path).type.split(" or ")
        assert set(names.values()) <= set(allowed)
        assert not set(names) & set(allowed)
