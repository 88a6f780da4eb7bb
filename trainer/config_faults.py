"""What is wrong with a configuration that has all of its keys: numbers out of range, and what
does not go together.

The planner refuses the same, with better words: a file that comes here was made by hand or by
another version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import ModelConfig, TrainerConfig

# Smallest allowed value of each number that has one.
_LEAST: dict[str, float] = {
    "num_ranks": 1, "ranks_per_node": 1, "steps": 1, "batch.micro": 1, "batch.accumulation": 1,
    "seed": 0, "nonfinite.limit": 0, "model.context": 1, "model.vocab_size": 1, "model.dropout": 0,
    "data.samples": 1, "data.workers": 0,
    "data.validation_fraction": 0, "optimizer.lr": 0, "optimizer.clip_norm": 0,
    "optimizer.weight_decay": 0, "schedule.warmup_steps": 0, "evaluation.every": 1,
    "evaluation.batches": 1, "logging.every": 1, "checkpoint.every_steps": 1, "checkpoint.keep": 1,
    "parallelism.shard_group": 1, "parallelism.tensor": 1, "parallelism.check_replicas_every": 1,
    "parallelism.activation_checkpointing_every": 1, "parallelism.wrap.min_parameters": 1,
    "parallelism.ddp.powersgd_rank": 1, "parallelism.fsdp.prefetch_forward": 0,
    "parallelism.fsdp.prefetch_backward": 0,
}  # fmt: skip

_ABOVE_0 = (
    "rendezvous_timeout_s", "load_timeout_s", "first_step_timeout_s", "step_timeout_s",
    "evaluation_timeout_s", "shutdown_timeout_s", "checkpoint.every_s", "checkpoint.mtbf_s",
    "checkpoint.timeout_s", "parallelism.ddp.bucket_cap_mb",
)  # fmt: skip


def range_faults(config: TrainerConfig) -> list[str]:
    """Each number that is out of its range, by key."""
    faults = []
    for key, least in _LEAST.items():
        value = _at(config, key)
        if value is not None and value < least:
            faults.append(f"{key}: is {value} (allowed: from {least})")
    if config.data.validation_fraction >= 1:
        given = config.data.validation_fraction
        faults.append(f"data.validation_fraction: is {given} (allowed: below 1)")
    if config.model.factory is None:
        faults += _size_faults(config.model)
    if len(config.optimizer.betas) != 2:
        faults.append(f"optimizer.betas: has {len(config.optimizer.betas)} numbers (allowed: 2)")
    for key in _ABOVE_0:
        value = _at(config, key)
        if value is not None and value <= 0:
            faults.append(f"{key}: is {value} (allowed: above 0)")
    return [*faults, *_interval_faults(config)]


def _interval_faults(config: TrainerConfig) -> Iterator[str]:
    """Of the keys that say when a checkpoint is due, one holds."""
    keys = ("every_steps", "every_s", "mtbf_s")
    given = [key for key in keys if getattr(config.checkpoint, key) is not None]
    if len(given) != 1:
        yield f"checkpoint: has {' and '.join(given) or 'none'} (allowed: one of {', '.join(keys)})"


def _at(config: TrainerConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _size_faults(model: ModelConfig) -> list[str]:
    """What is wrong with the built-in GPT's sizes; a factory has none."""
    sizes = {"layers": model.layers, "heads": model.heads, "width": model.width}
    faults = [f"model.{k}: is {v} (allowed: from 1)" for k, v in sizes.items() if v < 1]
    if not faults and model.width % model.heads:
        faults.append(f"model.heads: {model.heads} does not divide model.width {model.width}")
    return faults


def strategy_faults(config: TrainerConfig) -> list[str]:
    """What cannot go together, each of which would train something else, or fail late."""
    checks = (
        _device_faults,
        _mesh_faults,
        _tensor_faults,
        _offload_faults,
        _hook_faults,
        _wrapper_faults,
    )
    return [fault for check in checks for fault in check(config)]


def _device_faults(config: TrainerConfig) -> Iterator[str]:
    """A backend other than gloo sums on a device of its own."""
    needed = {"xccl": "xpu", "hccl": "npu", "cncl": "mlu", "gloo": config.device}
    device = needed.get(config.backend, "cuda")
    if config.device != device:
        yield f'device: is "{config.device}" (allowed with backend {config.backend}: "{device}")'


def _mesh_faults(config: TrainerConfig) -> Iterator[str]:
    parallelism, ranks = config.parallelism, config.num_ranks
    group, tensor = parallelism.shard_group, parallelism.tensor
    if parallelism.strategy == "dp" and ranks != 1:
        yield f"num_ranks: is {ranks} (allowed with strategy dp, one process for all GPUs: 1)"
    ignored = config.data.ignore_token
    if parallelism.strategy == "dp" and ignored is not None:  # its GPUs' means weigh alike
        yield f"data.ignore_token: is {ignored} (allowed with strategy dp: null)"
    if parallelism.strategy == "hybrid_shard" and group is None:
        yield "parallelism.shard_group: is null (allowed with hybrid_shard: a number of ranks)"
    if parallelism.strategy != "hybrid_shard" and group is not None:
        yield f"parallelism.shard_group: is {group} (allowed with {parallelism.strategy}: null)"
    if ranks % ((group or 1) * tensor):
        yield (
            f"parallelism: {ranks} ranks are no multiple of shard_group {group or 1}"
            f" x tensor {tensor} (allowed: sizes that multiply to num_ranks)"
        )
    reshard = parallelism.fsdp.reshard_after_forward
    shard = group or ranks // tensor
    if reshard is not None and not isinstance(reshard, bool) and (reshard < 2 or shard % reshard):
        yield (
            f"parallelism.fsdp.reshard_after_forward: is {reshard} (allowed: true, false, null or"
            f" a divisor, from 2, of the {shard} ranks that share the model)"
        )


def _tensor_faults(config: TrainerConfig) -> Iterator[str]:
    parallelism, model = config.parallelism, config.model
    if parallelism.tensor == 1:
        return
    key = f"parallelism.tensor: is {parallelism.tensor}, which"
    if not parallelism.uses_fsdp or parallelism.fsdp.version == 1:
        yield f"{key} goes with full_shard, shard_grad_op and hybrid_shard of fsdp.version 2 only"
    if model.factory is not None:
        yield f"{key} is for the built-in model only, and model.factory is given"
    elif model.heads % parallelism.tensor:
        yield f"{key} does not divide the {model.heads} heads of the model"
    if model.dropout > 0:
        yield f"{key} would draw dropout twice (allowed with model.dropout {model.dropout}: 1)"


def _offload_faults(config: TrainerConfig) -> Iterator[str]:
    parallelism = config.parallelism
    if not parallelism.cpu_offload:
        return
    key = "parallelism.cpu_offload: is true, which"
    if not parallelism.uses_fsdp:
        yield f"{key} needs a strategy that FSDP runs, not {parallelism.strategy}"
    if parallelism.precision == "fp16":
        yield f"{key} does not go with precision fp16"
    if parallelism.fsdp.version == 1 and config.device == "cpu":
        yield f"{key} fails with fsdp.version 1 on the CPU"
    if parallelism.fsdp.version == 1 and config.batch.accumulation > 1:
        yield f"{key} loses gradients with fsdp.version 1 and batch.accumulation above 1"
    if config.device == "cuda" and config.backend == "nccl":
        yield f'{key} sums on the CPU too: backend must be "cpu:gloo,cuda:nccl"'


def _hook_faults(config: TrainerConfig) -> Iterator[str]:
    parallelism = config.parallelism
    if parallelism.ddp.hook == "bf16" and config.backend == "gloo":
        yield "parallelism.ddp.hook: bf16 fails on gloo (allowed there: none, fp16, powersgd)"
    if parallelism.ddp.hook != "powersgd":
        return
    key = "parallelism.ddp.hook: is powersgd, which"
    # What it holds back for the next step would be NaN after the step that was left out.
    if parallelism.precision == "fp16":
        yield f"{key} does not go with precision fp16, which leaves steps out"
    if config.nonfinite.policy == "skip":
        yield f"{key} does not go with nonfinite.policy skip"
    if parallelism.gradient_sync == "each":  # it counts sums, and a resumed run counts steps
        yield f"{key} does not go with gradient_sync each"


def _wrapper_faults(config: TrainerConfig) -> Iterator[str]:
    parallelism = config.parallelism
    if _adds_up_narrow_copies(config):
        yield (
            "parallelism.gradient_sync: is last (allowed with fsdp.version 1, precision"
            f" {parallelism.precision} and batch.accumulation above 1: each)"
        )
    if parallelism.strategy == "shard_grad_op" and parallelism.fsdp.reshard_after_forward:
        yield "parallelism.fsdp.reshard_after_forward: shard_grad_op is false or null here"
    if parallelism.wrap.by == "class" and not parallelism.wrap.classes:
        yield "parallelism.wrap.classes: is empty (allowed with by class: names of classes)"
    if parallelism.activation_checkpointing != "none" and config.model.factory is not None:
        yield (
            f"parallelism.activation_checkpointing: {parallelism.activation_checkpointing} is for"
            " the built-in model; call torch.utils.checkpoint inside the model of"
            " train.model.factory instead"
        )
    if parallelism.activation_checkpointing != "none" and parallelism.ddp.find_unused_parameters:
        yield (
            "parallelism.ddp.find_unused_parameters: is true (allowed with"
            " activation_checkpointing: false, since the recomputed pass would mark a parameter"
            " ready twice)"
        )


def _adds_up_narrow_copies(config: TrainerConfig) -> bool:
    """Where FSDP1 adds up the micro-batches' gradients as narrow as they come.

    torch 2.13's NO_SHARD even fails with tied weights: the fp32 parameter gets a narrow gradient.
    """
    parallelism = config.parallelism
    flat = parallelism.uses_fsdp and parallelism.fsdp.version == 1
    waits = parallelism.gradient_sync == "last" and config.batch.accumulation > 1
    return flat and waits and parallelism.precision != "fp32"
