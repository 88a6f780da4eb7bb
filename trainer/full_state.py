"""Weights and optimizer state as if one rank held all: whole tensors on the CPU, by name.

They fit any strategy and any number of ranks. One tensor at a time is made whole, and only rank 0
keeps it; loading takes from a file no more than this rank's part.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

NamedParameters = Iterable[tuple[str, nn.Parameter]]
Buffers = dict[str, Tensor]
"""Memory on the CPU that the training does not change, by what it holds; used again and again."""
STEP = "step"  # the one entry of AdamW's state that is no moment


class Layout(Protocol):
    """How the parameter or buffer `name`, or a moment of it, lies on the ranks."""

    def shape(self, name: str, part: Tensor) -> list[int]:
        """The shape of the whole tensor."""

    def whole(self, name: str, part: Tensor) -> Tensor:
        """The whole tensor; a collective if it is spread."""

    def put(self, name: str, part: Tensor, whole: Tensor) -> None:
        """Copy this rank's part of a whole tensor, on any device, into `part`."""


class Described:
    """The layout that tensors describe themselves: DTensors are spread, others are whole."""

    def shape(self, name: str, part: Tensor) -> list[int]:
        return list(part.shape)

    def whole(self, name: str, part: Tensor) -> Tensor:
        part = part.detach()
        if not isinstance(part, DTensor):
            return part
        placements = list(part.placements)
        # One dimension of the mesh after the other, as torch does too, but it warns of that.
        for dimension in range(len(placements)):
            placements[dimension] = Replicate()
            part = part.redistribute(placements=placements)
        return part.to_local()

    def put(self, name: str, part: Tensor, whole: Tensor) -> None:
        put(part, whole)


@torch.no_grad()
def put(part: Tensor, whole: Tensor) -> None:
    """Copy into `part` this rank's part of a tensor that it has whole, on any device."""
    if isinstance(part, DTensor):
        mesh, placements = part.device_mesh, part.placements
        # None: each rank takes its part from what it has, and nothing is sent.
        whole = distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
        part = part.to_local()
    part.copy_(whole)


@torch.no_grad()
def gather_model(
    entries: Mapping[str, Any], layout: Layout, keep: bool, into: Buffers | None = None
) -> dict[str, Any]:
    """The entries of a model's state, whole and on the CPU; a collective if anything is spread.

    What the model ties is one tensor under two names. Without `keep` the result is empty. into:
    where copies go; without it, what lies whole on the CPU is no copy.
    """
    found: dict[int, Any] = {}
    for name, value in entries.items():
        if id(value) not in found:
            found[id(value)] = _kept(name, value, layout, keep, name, into)
    return {name: found[id(value)] for name, value in entries.items()} if keep else {}


@torch.no_grad()
def gather_optimizer(
    named: NamedParameters,
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    keep: bool,
    into: Buffers | None = None,
) -> dict[str, Any]:
    """The state of each parameter by its name; otherwise as gather_model."""
    states: dict[str, Any] = {}
    for name, parameter in named:
        if parameter in optimizer.state:
            state = dict(optimizer.state[parameter])
            step = state.pop(STEP)
            states[name] = {STEP: _copied(step, f"{STEP} of {name}", into) if keep else None}
            for key, value in state.items():
                states[name][key] = _kept(name, value, layout, keep, f"{key} of {name}", into)
    return {"state": states} if keep else {}


def _kept(
    name: str, value: Any, layout: Layout, keep: bool, what: str, into: Buffers | None
) -> Any:
    whole = layout.whole(name, value) if isinstance(value, Tensor) else value
    return _copied(whole, what, into) if keep else None


def _copied(value: Any, what: str, into: Buffers | None) -> Any:
    """`value` on the CPU; if there are buffers, a copy, a tensor's in the buffer of its own."""
    if not isinstance(value, Tensor):
        return value if into is None else copy.deepcopy(value)
    if into is None:
        return value.cpu()
    buffer = into.get(what)
    if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
        # Pinned, a GPU writes there several times as fast.
        buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        into[what] = buffer
    return buffer.copy_(value)


@torch.no_grad()
def load_model(entries: Mapping[str, Any], layout: Layout, content: Mapping[str, Any]) -> None:
    """Copy what gather_model returned into the entries; ValueError names all that do not fit."""
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    own: dict[int, str] = {}  # the first name of each, which the layout knows
    names = {name: own.setdefault(id(value), name) for name, value in tensors.items()}
    shapes = {name: layout.shape(names[name], value) for name, value in tensors.items()}
    _refuse_misfits(shapes, {k: v for k, v in content.items() if isinstance(v, Tensor)})
    for name in own.values():
        layout.put(name, tensors[name], content[name])


@torch.no_grad()
def load_optimizer(
    named: NamedParameters,
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    content: Mapping[str, Any],
) -> None:
    """Take over what gather_optimizer returned; ValueError if it is of other parameters.

    A parameter that never had a gradient has no state.
    """
    states = content.get("state", {})
    known = {name: parameter for name, parameter in named if name in states}
    shapes = {name: layout.shape(name, parameter) for name, parameter in known.items()}
    _refuse_misfits(shapes, {name: state.get("exp_avg") for name, state in states.items()})
    for name, parameter in known.items():
        state = dict(states[name])
        own = {STEP: state.pop(STEP).to(parameter.device, copy=True)}
        for key, value in state.items():
            own[key] = torch.zeros_like(parameter, requires_grad=False)
            layout.put(name, own[key], value)
        optimizer.state[parameter] = own


def _refuse_misfits(wanted: Mapping[str, list[int]], given: Mapping[str, Any]) -> None:
    faults = [f"{name} is missing" for name in wanted if name not in given]
    faults += [f"{name} is not known" for name in given if name not in wanted]
    for name in wanted.keys() & given.keys():
        shape = list(given[name].shape) if isinstance(given[name], Tensor) else None
        if shape != wanted[name]:
            faults.append(f"{name} has shape {shape} instead of {wanted[name]}")
    if faults:
        raise ValueError("; ".join(sorted(faults)))
