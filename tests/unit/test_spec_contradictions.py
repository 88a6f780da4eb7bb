"""spec: options of parallelism that contradict one another or other keys, and what is said."""

from __future__ import annotations

import pytest

from worlds import faults_of

# Options below `parallelism: {...}` of WORLD, other keys by --set; key at fault, message, fix.
REFUSED: list[tuple[str, list[str], str, str, str]] = [
    (
        "strategy: full_shard, wrap: {by: class}",
        [],
        "wrap.by",
        "class needs the names of the classes",
        "classes: [Block]",
    ),
    (
        "strategy: full_shard, wrap: {classes: [Block]}",
        [],
        "wrap.classes",
        "goes with by: class only, not with by: block",
        "write by: class",
    ),
    (
        "strategy: full_shard, wrap: {by: class, classes: [Block], min_parameters: 9}",
        [],
        "wrap.min_parameters",
        "goes with by: size only, not with by: class",
        "write by: size",
    ),
    (
        "strategy: full_shard, wrap: {by: class, classes: [torch.nn.Linear]}",
        [],
        "wrap.classes[0]",
        '"torch.nn.Linear" is not the name of a class alone',
        "write Linear",
    ),
    (
        "strategy: full_shard, fsdp: {reshard_after_forward: false}",
        [],
        "fsdp.reshard_after_forward",
        "false is what shard_grad_op does",
        "strategy: shard_grad_op",
    ),
    (
        "strategy: shard_grad_op, fsdp: {reshard_after_forward: true}",
        [],
        "fsdp.reshard_after_forward",
        "true is what full_shard does",
        "strategy: full_shard",
    ),
    (
        "strategy: shard_grad_op, fsdp: {reshard_after_forward: 4}",
        [],
        "fsdp.reshard_after_forward",
        "4 is what full_shard does",
        "strategy: full_shard",
    ),
    (
        "strategy: no_shard, fsdp: {version: 1, reshard_after_forward: true}",
        [],
        "fsdp.reshard_after_forward",
        "nothing is sharded under no_shard",
        "remove it",
    ),
    (
        "strategy: full_shard, fsdp: {version: 1, reshard_after_forward: 4}",
        [],
        "fsdp.reshard_after_forward",
        "for fsdp.version 2 only",
        "true or false",
    ),
    (
        "strategy: full_shard, fsdp: {reshard_after_forward: yes}",
        [],
        "fsdp.reshard_after_forward",
        "true, false or a number of ranks from 2 belongs here",
        "write true, false",
    ),
    (
        "strategy: full_shard, fsdp: {reshard_after_forward: 1}",
        [],
        "fsdp.reshard_after_forward",
        "a number of ranks from 2",
        "such as 8",
    ),
    (
        "strategy: full_shard, fsdp: {version: 1, deferred_init: true}",
        [],
        "fsdp.deferred_init",
        "version 1 builds the whole model on each rank",
        "remove it, or version",
    ),
    (
        "strategy: full_shard, fsdp: {version: 1, prefetch_backward: 1}",
        [],
        "fsdp.prefetch_backward",
        "goes with fsdp.version 2 only",
        "remove it, or version",
    ),
    ("fsdp: {version: 3}", [], "fsdp.version", "only 2 or 1 can be written here, not 3", ""),
    ("ddp: {hook: bf16}", [], "ddp.hook", "bf16 fails on gloo", "hook: fp16 or powersgd"),
    (
        "ddp: {hook: bf16}",
        ["resources.gpus_per_node=4", "network.backend=gloo"],
        "ddp.hook",
        "bf16 fails on gloo",
        "nccl",
    ),
    (
        "ddp: {hook: fp16, powersgd_rank: 2}",
        [],
        "ddp.powersgd_rank",
        "goes with hook: powersgd only, not with hook: fp16",
        "write hook: powersgd",
    ),
    (
        "activation_checkpointing_every: 2",
        [],
        "activation_checkpointing_every",
        "nothing is computed again",
        "activation_checkpointing: full or selective",
    ),
    (
        "activation_checkpointing: selective, activation_checkpointing_every: 5",
        [],
        "activation_checkpointing_every",
        "5 is more than the 4 blocks of the model",
        "from 1 to 4",
    ),
    (
        "activation_checkpointing: selective, ddp: {find_unused_parameters: true}",
        [],
        "ddp.find_unused_parameters",
        "would mark a parameter ready twice",
        "find_unused_parameters: false",
    ),
    (
        "cpu_offload: true, strategy: full_shard, precision: fp16",
        [],
        "cpu_offload",
        "not supported together with precision fp16",
        "precision: bf16",
    ),
    (
        "cpu_offload: true, strategy: full_shard, fsdp: {version: 1}",
        [],
        "cpu_offload",
        "true without GPUs: fsdp.version 1 fails",
        "remove fsdp.version",
    ),
    (
        "cpu_offload: true, strategy: full_shard, fsdp: {version: 1}",
        ["resources.gpus_per_node=4", "train.batch.accumulation=4"],
        "cpu_offload",
        "loses the gradients of all micro-batches but the last one",
        "accumulation: 1",
    ),
    (
        "strategy: no_shard, fsdp: {version: 1}, precision: bf16",
        ["train.batch.accumulation=4"],
        "gradient_sync",
        "torch's class would add up gradients in bf16",
        "gradient_sync: each",
    ),
    (
        "strategy: shard_grad_op, fsdp: {version: 1}, precision: fp16",
        ["train.batch.accumulation=2"],
        "gradient_sync",
        "torch's class would add up gradients in fp16",
        "gradient_sync: each",
    ),
    (
        "ddp: {hook: powersgd}, precision: fp16",
        [],
        "ddp.hook",
        "powersgd with precision fp16",
        "precision: bf16",
    ),
    (
        "ddp: {hook: powersgd}",
        ["train.nonfinite.policy=skip"],
        "ddp.hook",
        "powersgd with train.nonfinite.policy skip",
        "nonfinite.policy: stop",
    ),
    (
        "ddp: {hook: powersgd}, gradient_sync: each",
        [],
        "gradient_sync",
        "each with ddp.hook powersgd",
        "gradient_sync: last",
    ),
    (
        "strategy: full_shard, check_replicas_every: 10",
        [],
        "check_replicas_every",
        "full_shard keeps one copy",
        "remove it",
    ),
]


@pytest.mark.parametrize(("options", "sets", "key", "message", "fix"), REFUSED)
def test_what_contradicts_something_else(
    options: str, sets: list[str], key: str, message: str, fix: str
) -> None:
    (fault,) = faults_of(options, *sets)
    assert fault.key == f"parallelism.{key}"
    assert message in fault.message
    assert fix in fault.fix
    assert fault.position is not None


ELSEWHERE: list[tuple[list[str], str, str, str]] = [
    (
        ["train.model.dropout=0.1", "parallelism.tensor=2", "parallelism.strategy=full_shard"],
        "train.model.dropout",
        "0.1 with parallelism.tensor 2: the ranks of a tensor group would drop different",
        "dropout: 0.0",
    ),
    (
        [
            "parallelism.strategy=dp",
            "train.compile=true",
            "resources.nodes=1",
            "resources.ranks_per_node=1",
        ],
        "train.compile",
        "true with dp",
        "compile: false",
    ),
    (
        [
            "parallelism.strategy=dp",
            "resources={nodes: 1, gpus_per_node: 4, ranks_per_node: 1}",
            "train.batch.micro=6",
        ],
        "train.batch.micro",
        "6 sequences cannot be split evenly over the 4 GPUs of dp",
        "a multiple of 4",
    ),
    (
        [
            "parallelism.strategy=dp",
            "resources={nodes: 1, ranks_per_node: 1}",
            "train.data.ignore_token=0",
        ],
        "train.data.ignore_token",
        "not with dp",
        "strategy: ddp",
    ),
    (
        ["train.nonfinite.limit=2"],
        "train.nonfinite.limit",
        "goes with policy: skip only",
        "policy: skip",
    ),
    (
        ["train.nonfinite={policy: skip, limit: 0}"],
        "train.nonfinite.limit",
        "0 is not at least 1",
        "from 1",
    ),
    (
        ["train.data.ignore_token=256"],
        "train.data.ignore_token",
        "there are 256 different tokens",
        "from 0 to 255",
    ),
    (
        ["train.data.ignore_token=9", "train.model.vocab_size=9"],
        "train.data.ignore_token",
        "there are 9 different tokens, so none has the number 9",
        "from 0 to 8",
    ),
    (
        ["parallelism.strategy=full_shard", "resources.gpus_per_node=4", "network.backend=gloo"],
        "network.backend",
        "sharding on GPUs was never tried on gloo",
        "backend: nccl",
    ),
    (["train.data.ignore_token=-100"], "train.data.ignore_token", "not at least 0", "from 0"),
]


@pytest.mark.parametrize(("sets", "key", "message", "fix"), ELSEWHERE)
def test_what_is_said_at_other_keys(sets: list[str], key: str, message: str, fix: str) -> None:
    (fault,) = faults_of("", *sets)
    assert fault.key == key
    assert message in fault.message
    assert fix in fault.fix
