"""What was probably meant."""

from __future__ import annotations

from collections.abc import Sequence

# Names that people know from other tools, and the key that does the same here.
ALIASES = {
    "async_save": "checkpoint.async",
    "asynchronous": "checkpoint.async",
    "batch_size": "train.batch.micro",
    "ddp_backend": "network.backend",
    "ddp_timeout": "timeouts.step",
    "deepspeed": "parallelism.strategy",
    "epochs": "train.steps",
    "fp16": "parallelism.precision",
    "bf16": "parallelism.precision",
    "fsdp_activation_checkpointing": "parallelism.activation_checkpointing",
    "fsdp_auto_wrap_policy": "parallelism.wrap.by",
    "fsdp_backward_prefetch": "parallelism.fsdp.prefetch_backward",
    "fsdp_config": "parallelism.fsdp",
    "fsdp_cpu_ram_efficient_loading": "parallelism.fsdp.deferred_init",
    "fsdp_forward_prefetch": "parallelism.fsdp.prefetch_forward",
    "fsdp_min_num_params": "parallelism.wrap.min_parameters",
    "fsdp_offload_params": "parallelism.cpu_offload",
    "fsdp_sharding_strategy": "parallelism.strategy",
    "fsdp_transformer_layer_cls_to_wrap": "parallelism.wrap.classes",
    "ignore_index": "train.data.ignore_token",
    "gpus": "resources.gpus_per_node",
    "gradient_accumulation_steps": "train.batch.accumulation",
    "gradient_checkpointing": "parallelism.activation_checkpointing",
    "gradient_clipping": "train.optimizer.clip_norm",
    "learning_rate": "train.optimizer.lr",
    "lr_scheduler_type": "train.schedule.kind",
    "max_grad_norm": "train.optimizer.clip_norm",
    "max_restarts": "attempts.failures",
    "max_steps": "train.steps",
    "mem": "resources.memory",
    "mixed_precision": "parallelism.precision",
    "num_nodes": "resources.nodes",
    "num_workers": "train.data.workers",
    "nnodes": "resources.nodes",
    "nproc_per_node": "resources.ranks_per_node",
    "per_device_train_batch_size": "train.batch.micro",
    "resume_from_checkpoint": "checkpoint.resume",
    "retries": "attempts.failures",
    "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep",
    "sharding_strategy": "parallelism.strategy",
    "tensor_parallel_size": "parallelism.tensor",
    "time": "resources.time_limit",
    "torch_compile": "train.compile",
    "tp_size": "parallelism.tensor",
    "walltime": "resources.time_limit",
    "zero_stage": "parallelism.strategy",
}

# Values that people know from other tools, in lower case with underscores, and what does the same
# here. ZeRO's stages: Rajbhandari et al., "ZeRO" (2020), section 5, as torch's ShardingStrategy
# maps them; its first stage alone (optimizer state) is not here.
VALUE_ALIASES: dict[str, dict[str, str]] = {
    "parallelism.strategy": {
        "_hybrid_shard_zero2": "hybrid_shard",
        "data_parallel": "dp",
        "distributed_data_parallel": "ddp",
        "fsdp": "full_shard",
        "fsdp1": "full_shard",
        "fsdp2": "full_shard",
        "fully_shard": "full_shard",
        "hsdp": "hybrid_shard",
        "hybrid_shard_zero2": "hybrid_shard",
        "stage2": "shard_grad_op",
        "stage3": "full_shard",
        "zero2": "shard_grad_op",
        "zero3": "full_shard",
        "zero_2": "shard_grad_op",
        "zero_3": "full_shard",
    },
    "parallelism.precision": {
        "16_mixed": "fp16",
        "bf16_mixed": "bf16",
        "bfloat16": "bf16",
        "float16": "fp16",
        "float32": "fp32",
        "half": "fp16",
        "no": "fp32",
    },
}


def did_you_mean(
    given: str, known: Sequence[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return at most `count` of the known names that are close to the given one, best first.

    Args:
        given: what the user wrote.
        known: what could be meant.
        count: how many to return at most.
        cutoff: how close they must be, from 0 (anything) to 1 (the same).
    """
    import difflib  # late: a job file without faults needs no proposals

    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower().replace("-", "_"), lower, count, cutoff)
    close = close or difflib.get_close_matches(given.lower(), lower, count, cutoff)
    return [lower[name] for name in close]


def other_place(given: str, paths: Sequence[str]) -> str | None:
    """Return the path of the key that does elsewhere what was probably meant, if there is one.

    Args:
        given: the last part of an unknown key.
        paths: all keys that there are.
    """
    name = given.lower().replace("-", "_")
    same = [path for path in paths if path.rpartition(".")[2] == name]
    if len(same) == 1:
        return same[0]
    wrapper, _, option = name.partition("_")
    if f"parallelism.{wrapper}.{option}" in paths:  # ddp_bucket_cap_mb, fsdp_version
        return f"parallelism.{wrapper}.{option}"
    return ALIASES.get(name)


def other_value(path: str, given: str) -> str | None:
    """Return the value that does what one of another tool does, if there is one.

    Args:
        path: the key with dots.
        given: what the user wrote there.
    """
    return VALUE_ALIASES.get(path, {}).get(given.lower().replace("-", "_"))
