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

from trainer.boxes import Box

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

    def boxes(self, name: str, part: Tensor) -> list[Box]:
        """What this rank has of the whole tensor, perhaps nothing; views, not copies."""

    def split(self, name: str, part: Tensor) -> frozenset[str]:
        """The dimensions of the mesh along which ranks have different parts; see mesh.py."""


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

    def boxes(self, name: str, part: Tensor) -> list[Box]:
        part = part.detach()
        if not isinstance(part, DTensor):
            return [Box((0,) * part.dim(), part)]
        local = part.to_local()
        (place,) = part.__create_chunk_list__()  # type: ignore[no-untyped-call]
        if place.sizes != local.shape:
            raise RuntimeError(f"{name}: {list(local.shape)} lie where {list(place.sizes)} should")
        empty = part.numel() > 0 and local.numel() == 0
        return [] if empty else [Box(tuple(place.offsets), local)]

    def split(self, name: str, part: Tensor) -> frozenset[str]:
        if not isinstance(part, DTensor):
            return frozenset()
        names = part.device_mesh.mesh_dim_names or ()
        pairs = zip(names, part.placements, strict=True)
        return frozenset(name for name, place in pairs if not isinstance(place, Replicate))


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
        buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type != "cpu")
        into[what] = buffer
    return buffer.copy_(value)


@torch.no_grad()
def load_model(entries: Mapping[str, Any], layout: Layout, content: Mapping[str, Any]) -> None:
    """Copy what gather_model returned into the entries; ValueError names all that do not fit."""
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    own: dict[int, str] = {}  # the first name of each, which the layout knows
    names = {name: own.setdefault(id(value), name) for name, value in tensors.items()}
    shapes = {name: layout.shape(names[name], value) for name, value in tensors.items()}
    given = {name: list(v.shape) for name, v in content.items() if isinstance(v, Tensor)}
    refuse(misfits(shapes, given))
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
    refuse(misfits(shapes, {name: list(state["exp_avg"].shape) for name, state in states.items()}))
    for name, parameter in known.items():
        state = dict(states[name])
        own = {STEP: state.pop(STEP).to(parameter.device, copy=True)}
        for key, value in state.items():
            own[key] = torch.zeros_like(parameter, requires_grad=False)
            layout.put(name, own[key], value)
        optimizer.state[parameter] = own


def misfits(wanted: Mapping[str, list[int]], given: Mapping[str, list[int]]) -> list[str]:
    """What does not fit between the shapes of tensors by name, in words."""
    faults = [f"{name} is missing" for name in wanted if name not in given]
    faults += [f"{name} is not known" for name in given if name not in wanted]
    faults += [
        f"{name} has shape {given[name]} instead of {shape}"
        for name, shape in wanted.items()
        if given.get(name, shape) != shape
    ]
    return faults


def refuse(faults: Iterable[str]) -> None:
    """Raise ValueError with all faults, if there are any."""
    if told := sorted(faults):
        raise ValueError("; ".join(told))
