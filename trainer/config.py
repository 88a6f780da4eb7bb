"""trainer.json: what the planner rendered for this trainer, read strictly.

Every unit is resolved already: seconds, bytes, steps. A key that is unknown, missing or of a wrong
type is a ConfigurationError, and all of them are named at once.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from trainer import config_faults
from trainer.contract import ConfigurationError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the built-in GPT, or a factory 'package.module:function' called with args.

    init: a safetensors file with the first weights, relative to the working folder.
    """

    layers: int
    heads: int
    width: int
    context: int
    vocab_size: int | None
    dropout: float
    tied: bool
    factory: str | None
    args: dict[str, Any]
    init: str | None


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from; paths and globs are relative to the working folder.

    ignore_token: predictions of this token (padding) are not counted; None: all are.
    """

    kind: Literal["text", "tokens", "synthetic", "python_docs"]
    paths: tuple[str, ...]
    tokenizer: str | None
    dtype: Literal["uint16", "uint32"]
    ignore_token: int | None
    samples: int | None
    validation_fraction: float
    validation_paths: tuple[str, ...]
    workers: int


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and clipping; clip_norm 0 turns clipping off."""

    lr: float
    betas: tuple[float, ...]
    eps: float
    weight_decay: float
    clip_norm: float


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warm-up over warmup_steps, then constant or cosine down to min_lr_ratio * lr."""

    warmup_steps: int
    kind: Literal["cosine", "constant"]
    min_lr_ratio: float


@dataclass(frozen=True)
class BatchConfig:
    """Sequences per rank and micro-batch, and micro-batches per optimizer step."""

    micro: int
    accumulation: int


@dataclass(frozen=True)
class EvaluationConfig:
    """Steps between evaluations (None: at start and end) and batches per rank (None: all)."""

    every: int | None
    batches: int | None


@dataclass(frozen=True)
class NonfiniteConfig:
    """What a step whose gradient is no number does: ends the training, or is skipped.

    limit: steps skipped in a row before the training ends all the same; 0 with stop.
    """

    policy: Literal["stop", "skip"]
    limit: int


@dataclass(frozen=True)
class LoggingConfig:
    """Steps between metric lines, and whether TensorBoard files and sample numbers are written.

    traffic: whether the collectives of some steps are counted.
    """

    every: int
    tensorboard: bool
    samples: bool
    traffic: bool


@dataclass(frozen=True)
class DdpConfig:
    """Options of DistributedDataParallel under torch's names.

    broadcast_buffers None means: only if the model has buffers.
    """

    find_unused_parameters: bool
    broadcast_buffers: bool | None
    bucket_cap_mb: float
    gradient_as_bucket_view: bool
    static_graph: bool
    hook: Literal["none", "fp16", "bf16", "powersgd"]
    powersgd_rank: int


@dataclass(frozen=True)
class FsdpConfig:
    """Options of fully_shard (version 2) or FullyShardedDataParallel (version 1).

    reshard_after_forward None means: as the strategy says. A prefetch of 0 leaves it to torch.
    deferred_init is for version 2; version 1 always builds the whole model on each rank's CPU.
    """

    version: Literal[2, 1]
    reshard_after_forward: bool | int | None
    prefetch_forward: int
    prefetch_backward: int
    deferred_init: bool


@dataclass(frozen=True)
class WrapConfig:
    """Which modules are sharded one by one: blocks, those of some classes, or by size."""

    by: Literal["block", "class", "size"]
    classes: tuple[str, ...]
    min_parameters: int


Format = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class ParallelismConfig:
    """How the model is spread over the ranks.

    shard_group: ranks that share one copy under hybrid_shard, None under other strategies. tensor:
    ranks that split each block. buffers None means: as they are. activation_checkpointing_every: it
    is done in every k-th block. check_replicas_every: steps, None for never.
    """

    strategy: Literal["ddp", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "dp"]
    shard_group: int | None
    tensor: int
    precision: Format
    reductions: Format
    buffers: Format | None
    activation_checkpointing: Literal["none", "full", "selective"]
    activation_checkpointing_every: int
    cpu_offload: bool
    gradient_sync: Literal["last", "each"]
    wrap: WrapConfig
    ddp: DdpConfig
    fsdp: FsdpConfig
    check_replicas_every: int | None

    @property
    def uses_fsdp(self) -> bool:
        """Whether torch's FSDP spreads the model; its NO_SHARD is there in version 1 alone."""
        if self.strategy == "no_shard":
            return self.fsdp.version == 1
        return self.strategy not in ("ddp", "dp")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved, how, and whether a start continues from what was saved.

    One of every_steps, every_s and mtbf_s is given: steps or seconds between checkpoints, or the
    mean time in seconds between failures of the whole job, from which the best interval follows.
    on_failure: what a checkpoint that cannot be written does. timeout_s: for one checkpoint.
    """

    every_steps: int | None
    every_s: float | None
    mtbf_s: float | None
    keep: int
    keep_best: bool
    format: Literal["full", "sharded", "both"]
    asynchronous: bool
    on_failure: Literal["stop", "continue"]
    timeout_s: float
    resume: Literal["auto", "never"]


@dataclass(frozen=True)
class NetworkConfig:
    """What is known of the network, and what is wanted of it.

    promises: transports of which the library must report one between nodes. watch: what a report
    of other transports does. interface: the one that the ranks use, None where each node finds it.
    """

    fabric: str | None
    promises: tuple[str, ...]
    watch: Literal["off", "warn", "stop"]
    debug: Literal["off", "warn", "trace"]
    interface: str | None


@dataclass(frozen=True)
class TrainerConfig:
    """The whole of trainer.json.

    num_ranks: what the job asks for; batch and sharding are given for it. world_sizes: the numbers
    of ranks with which an attempt may run, all of which keep the global batch.

    rendezvous_timeout_s: until all ranks have formed the process group. load_timeout_s: from there
    until the first step begins, which has first_step_timeout_s. step_timeout_s: the longest time
    without progress after it. evaluation_timeout_s: for a whole evaluation, None for no limit.
    shutdown_timeout_s: from a request to stop until ranks are ended.
    """

    version: Literal[1]
    name: str
    num_ranks: int
    world_sizes: tuple[int, ...]
    ranks_per_node: int
    device: Literal["cpu", "cuda", "xpu", "npu", "mlu"]
    backend: Literal["gloo", "nccl", "xccl", "hccl", "cncl", "cpu:gloo,cuda:nccl"]
    network: NetworkConfig
    rendezvous_timeout_s: float
    load_timeout_s: float
    first_step_timeout_s: float
    step_timeout_s: float
    evaluation_timeout_s: float | None
    shutdown_timeout_s: float
    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch: BatchConfig
    steps: int
    evaluation: EvaluationConfig
    seed: int
    nonfinite: NonfiniteConfig
    logging: LoggingConfig
    compile: bool
    parallelism: ParallelismConfig
    checkpoint: CheckpointConfig

    @property
    def uses_nccl(self) -> bool:
        """Whether tensors on the GPU go through NCCL, also where others go through gloo."""
        return "nccl" in self.backend


def read_config(path: Path) -> TrainerConfig:
    """The configuration in the file at `path`; ConfigurationError names all of its faults."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as JSON: {error}") from error
    return parse_config(raw, str(path))


def parse_config(raw: object, where: str) -> TrainerConfig:
    """The configuration in decoded JSON; `where` names its origin in messages."""
    faults: list[str] = []
    config = _value(TrainerConfig, raw, "", faults)
    if not faults:
        faults = config_faults.range_faults(config) or config_faults.strategy_faults(config)
    if faults:
        head = f"{where}: {len(faults)} fault(s); render the job again with this version"
        raise ConfigurationError("\n  ".join([head, *faults]))
    return typing.cast(TrainerConfig, config)


def _value(kind: Any, raw: object, key: str, faults: list[str]) -> Any:
    """`raw` as the annotated type `kind`; appends to faults and returns None if it is not."""
    origin = typing.get_origin(kind)
    if is_dataclass(kind):
        return _section(kind, raw, key, faults)
    if origin in (types.UnionType, typing.Union):
        return _choice(typing.get_args(kind), raw, key, faults)
    if origin is Literal and raw in typing.get_args(kind) and not isinstance(raw, bool):
        return raw
    if origin is tuple and isinstance(raw, list):
        item = typing.get_args(kind)[0]
        return tuple(_value(item, part, f"{key}[{i}]", faults) for i, part in enumerate(raw))
    if origin is dict and isinstance(raw, dict):
        return raw
    if origin is None and _is_scalar(kind, raw):
        return kind(raw)
    faults.append(f"{key}: is {json.dumps(raw)} (allowed: {_words(kind)})")
    return None


def _choice(kinds: tuple[Any, ...], raw: object, key: str, faults: list[str]) -> Any:
    """`raw` as the first of some kinds that it fits; a fault names the last one."""
    *others, last = [kind for kind in kinds if kind is not type(None)]
    if raw is None and type(None) in kinds:
        return None
    fitting = next((kind for kind in others if _is_scalar(kind, raw)), last)
    return _value(fitting, raw, key, faults)


def _section(kind: Any, raw: object, key: str, faults: list[str]) -> Any:
    if not isinstance(raw, dict):
        faults.append(f"{key or 'the file'}: is {json.dumps(raw)} (allowed: an object)")
        return None
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    faults += [f"{prefix}{name}: unknown key" for name in raw if name not in names]
    faults += [f"{prefix}{name}: is missing" for name in names if name not in raw]
    known = [name for name in names if name in raw]
    values = {name: _value(hints[name], raw[name], prefix + name, faults) for name in known}
    return kind(**values) if len(values) == len(names) else None


def _is_scalar(kind: Any, raw: object) -> bool:
    if isinstance(raw, bool) or kind is bool:
        return isinstance(raw, bool) and kind is bool
    if kind is float:
        return isinstance(raw, (int, float))
    return isinstance(raw, kind)


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return ", ".join(json.dumps(choice) for choice in typing.get_args(kind))
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return plain.get(kind, "a list" if typing.get_origin(kind) is tuple else "an object")
