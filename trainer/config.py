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

from trainer.contract import ConfigurationError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the built-in GPT, or a factory 'package.module:function' called with args."""

    layers: int
    heads: int
    width: int
    context: int
    vocab_size: int | None
    dropout: float
    tied: bool
    factory: str | None
    args: dict[str, Any]


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from; paths and globs are relative to the working folder."""

    kind: Literal["text", "tokens", "synthetic", "python_docs"]
    paths: tuple[str, ...]
    tokenizer: str | None
    dtype: Literal["uint16", "uint32"]
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
class LoggingConfig:
    """Steps between metric lines, and whether TensorBoard files are written too."""

    every: int
    tensorboard: bool


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


@dataclass(frozen=True)
class CheckpointConfig:
    """Steps between checkpoints, how many to keep, and whether a start continues from one."""

    every: int
    keep: int
    keep_best: bool
    resume: Literal["auto", "never"]


@dataclass(frozen=True)
class TrainerConfig:
    """The whole of trainer.json."""

    version: Literal[1]
    name: str
    num_ranks: int
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    step_timeout_s: float
    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch: BatchConfig
    steps: int
    evaluation: EvaluationConfig
    seed: int
    logging: LoggingConfig
    compile: bool
    precision: Literal["fp32", "bf16"]
    activation_checkpointing: Literal["none", "full"]
    strategy: str
    ddp: DdpConfig
    checkpoint: CheckpointConfig


# Smallest allowed value of each number that has one.
_LEAST: dict[str, float] = {
    "num_ranks": 1, "steps": 1, "batch.micro": 1, "batch.accumulation": 1, "seed": 0,
    "model.context": 1, "model.vocab_size": 1, "model.dropout": 0, "data.samples": 1,
    "data.workers": 0,
    "data.validation_fraction": 0, "optimizer.lr": 0, "optimizer.clip_norm": 0,
    "optimizer.weight_decay": 0, "schedule.warmup_steps": 0, "evaluation.every": 1,
    "evaluation.batches": 1, "logging.every": 1, "checkpoint.every": 1, "checkpoint.keep": 1,
}  # fmt: skip


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
        faults = _range_faults(config)
    if faults:
        head = f"{where}: {len(faults)} fault(s); render the job again with this version"
        raise ConfigurationError("\n  ".join([head, *faults]))
    return typing.cast(TrainerConfig, config)


def _range_faults(config: TrainerConfig) -> list[str]:
    faults = []
    for key, least in _LEAST.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        if value is not None and value < least:
            faults.append(f"{key}: is {value} (allowed: from {least})")
    if config.data.validation_fraction >= 1:
        given = config.data.validation_fraction
        faults.append(f"data.validation_fraction: is {given} (allowed: below 1)")
    if config.model.factory is None:
        faults += _size_faults(config.model)
    if len(config.optimizer.betas) != 2:
        faults.append(f"optimizer.betas: has {len(config.optimizer.betas)} numbers (allowed: 2)")
    for key, number in (("step_timeout_s", config.step_timeout_s),
                        ("ddp.bucket_cap_mb", config.ddp.bucket_cap_mb)):  # fmt: skip
        if number <= 0:
            faults.append(f"{key}: is {number} (allowed: above 0)")
    return faults


def _size_faults(model: ModelConfig) -> list[str]:
    """What is wrong with the built-in GPT's sizes; a factory has none."""
    sizes = {"layers": model.layers, "heads": model.heads, "width": model.width}
    faults = [f"model.{k}: is {v} (allowed: from 1)" for k, v in sizes.items() if v < 1]
    if not faults and model.width % model.heads:
        faults.append(f"model.heads: {model.heads} does not divide model.width {model.width}")
    return faults


def _value(kind: Any, raw: object, key: str, faults: list[str]) -> Any:
    """`raw` as the annotated type `kind`; appends to faults and returns None if it is not."""
    origin = typing.get_origin(kind)
    if is_dataclass(kind):
        return _section(kind, raw, key, faults)
    if origin is types.UnionType:
        inner = next(part for part in typing.get_args(kind) if part is not type(None))
        return None if raw is None else _value(inner, raw, key, faults)
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
