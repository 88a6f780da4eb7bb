"""What a planner must know of a user's model: shapes by unit, operations, and what a pass keeps."""

from __future__ import annotations

import contextlib
import copy
import json
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from trainer.config import WrapConfig, read_config
from trainer.contract import ConfigurationError, write_json
from trainer.model import call_factory
from trainer.precision import autocast
from trainer.tracing import ROOT, Kept, flops_of, kept_by, narrow, order_of_calls
from trainer.wrapping import units_of

VERSION = 1
CPU = torch.device("cpu")
LEFT_OUT = (
    "activations of another device's operations: those of the CPU's were looked at",
    "operations other than products of matrices, convolutions and attention",
)


@dataclass(frozen=True)
class Asked:
    """Which model; the file holds it, so that one of another model is found out."""

    factory: str
    args: dict[str, Any]
    context: int
    wrap: WrapConfig


@dataclass(frozen=True)
class Model:
    """A model, and the mode that its passes run in.

    units: those that are sharded one by one, by name, inner ones first.
    """

    module: nn.Module
    mode: AbstractContextManager[object]
    units: Mapping[str, nn.Module]


def asked_of(config_file: Path) -> Asked:
    """What a job's trainer.json asks for. Raises ConfigurationError if it has no factory."""
    config = read_config(config_file)
    if config.model.factory is None:
        raise ConfigurationError(
            f"{config_file}: model.factory: is null: the built-in model needs no inspection"
        )
    model = config.model
    return Asked(config.model.factory, model.args, model.context, config.parallelism.wrap)


def write_inspected(asked: Asked, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Look at the model and write `out`; returns what is written, and remarks for the user.

    Raises ConfigurationError for a factory or a model that cannot be used, OSError.
    """
    remarks: list[str] = []
    content = inspected(asked, remarks)
    write_json(out, content)
    return content, remarks


def inspected(asked: Asked, remarks: list[str]) -> dict[str, Any]:
    """Plain data about the model. Without memory for its values, where its code allows that."""
    try:
        return _content(asked, _without_memory(asked, remarks), remarks)
    except ConfigurationError:
        raise
    except Exception as error:  # a user's code may raise anything where a number has no value
        remarks.append(
            f"it was run whole on the CPU, since it needs values ({type(error).__name__}: {error})"
        )
    whole = _build(asked)
    model = Model(whole, contextlib.nullcontext(), _units(whole, asked.wrap, []))
    try:
        return _content(asked, model, remarks)
    except ConfigurationError:
        raise
    except Exception as error:  # of the user's forward pass
        raise ConfigurationError(
            f"train.model.factory: a pass over one sequence of {asked.context} tokens failed with"
            f" {_words(error)}; the module is called as module(tokens, targets), int64 [1, T] each"
        ) from error


def _build(asked: Asked) -> nn.Module:
    try:
        return call_factory(asked.factory, asked.args)
    except ConfigurationError:
        raise
    except Exception as error:  # whatever a user's code raises, the user is told
        raise ConfigurationError(
            f"train.model.factory: {asked.factory} failed with {_words(error)}"
        ) from error


def _words(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _without_memory(asked: Asked, remarks: list[str]) -> Model:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            module = _build(asked)
    except ConfigurationError:  # perhaps for this alone: then it is made whole, once
        whole = _build(asked)
        remarks.append("it was built whole on the CPU, since its factory needs values")
        with FakeCopyMode(mode):
            module = copy.deepcopy(whole)
    return Model(module, mode, _units(module, asked.wrap, remarks))


def _units(module: nn.Module, wrap: WrapConfig, remarks: list[str]) -> dict[str, nn.Module]:
    """None where they cannot be found: strategies without sharding need none."""
    try:
        units = units_of(module, wrap)
    except ConfigurationError as error:
        remarks.append(f"the model is one unit: {error}")
        return {}
    names = {id(part): name for name, part in module.named_modules()}
    return {names[id(unit)]: unit for unit in units}


def _content(asked: Asked, model: Model, remarks: list[str]) -> dict[str, Any]:
    held = list(_parameters(model))  # before the last pass narrows them
    buffers = {buffer.untyped_storage()._cdata: buffer for buffer in model.module.buffers()}
    with model.mode, order_of_calls(model.units) as order:
        flops = flops_of(model.module, asked.context)
    kept = _kept(model, asked.context)
    named = [*order, *(name for name in model.units if name not in order)]
    units = [_unit(name, held, kept) for name in named]
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "factory": asked.factory,
        "args": asked.args,
        "context": asked.context,
        "wrap": _wrap(asked.wrap),
        "buffer_bytes": sum(buffer.nbytes for buffer in buffers.values()),
        "flops_per_token": flops / asked.context,
        "units": units,
        "root": _unit(ROOT, held, kept),
        "working_bytes": {key: one.working for key, one in kept.items()},
        "left_out": [*LEFT_OUT, *remarks],
    }


def _wrap(wrap: WrapConfig) -> dict[str, Any]:
    """What matters for the way that units are looked for."""
    return {
        "by": wrap.by,
        "classes": list(wrap.classes) if wrap.by == "class" else [],
        "min_parameters": wrap.min_parameters if wrap.by == "size" else 0,
    }


def _parameters(model: Model) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each parameter once, under its first name, with the innermost unit that holds it."""
    unit_of = {
        id(parameter): name
        for name, unit in reversed(list(model.units.items()))
        for parameter in unit.parameters()
    }
    for name, parameter in model.module.named_parameters():
        yield (
            unit_of.get(id(parameter), ROOT),
            {
                "name": name,
                "shape": list(parameter.shape),
                "trainable": parameter.requires_grad,
                "item_bytes": parameter.element_size(),
            },
        )


def _unit(
    name: str, held: Iterable[tuple[str, dict[str, Any]]], kept: Mapping[str, Kept]
) -> dict[str, Any]:
    return {
        "name": name,
        "parameters": [parameter for unit, parameter in held if unit == name],
        "activation_bytes": {key: one.by_unit.get(name, 0) for key, one in kept.items()},
    }


def _kept(model: Model, context: int) -> dict[str, Kept]:
    """By number format: autocast has fp32 parameters, and bf16 narrow ones too."""
    module, units = model.module, model.units
    with model.mode:
        found = {
            "fp32/none": kept_by(module, units, context, autocast("fp32", CPU)),
            "autocast/none": kept_by(module, units, context, autocast("bf16", CPU)),
        }
        narrow(module, torch.bfloat16)
        return {**found, "bf16/none": kept_by(module, units, context, autocast("bf16", CPU))}


def wrap_of(words: str) -> WrapConfig:
    """block, class:NAME,NAME or size:NUMBER. Raises ConfigurationError."""
    by, _, rest = words.partition(":")
    if by == "block" and not rest:
        return WrapConfig("block", (), 0)
    if by == "class" and rest:
        return WrapConfig("class", tuple(rest.split(",")), 0)
    if by == "size" and rest.isdecimal() and int(rest) > 0:
        return WrapConfig("size", (), int(rest))
    raise ConfigurationError(
        f"--wrap: is {words} (allowed: block, class:NAME,NAME or size:NUMBER, as parallelism.wrap)"
    )


def args_of(text: str) -> dict[str, Any]:
    """The factory's arguments, a JSON object. Raises ConfigurationError."""
    try:
        args = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--args: is no JSON: {error}") from error
    if not isinstance(args, dict):
        raise ConfigurationError(f'--args: is {text} (allowed: a JSON object, as {{"width": 64}})')
    return args
