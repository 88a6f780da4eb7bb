"""Memory for a model that was built on the meta device, with what it ties still tied."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn


class Place(NamedTuple):
    """Where a parameter is held: a module of the model, and its attribute."""

    path: str
    module: nn.Module
    attribute: str


def ties_of(model: nn.Module) -> list[list[Place]]:
    """The places of each parameter that is held in more than one."""
    places: dict[int, list[Place]] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append(Place(path, module, attribute))
    return [held for held in places.values() if len(held) > 1]


def materialize(model: nn.Module, device: torch.device) -> None:
    """Give the model's parameters and buffers memory on `device`, not set to anything yet.

    torch's to_empty makes a new parameter for each place, and so one matrix into two.
    """
    ties = ties_of(model)
    model.to_empty(device=device)
    for first, *others in ties:
        for other in others:
            setattr(other.module, other.attribute, getattr(first.module, first.attribute))
    assert_tied(model, ties)


def assert_tied(model: nn.Module, before: list[list[Place]]) -> None:
    """Raise RuntimeError if what was tied is not any more: it would be trained as two."""
    for held in before:
        now = {id(getattr(place.module, place.attribute)) for place in held}
        if len(now) > 1:
            names = ", ".join(f"{place.path}.{place.attribute}" for place in held)
            raise RuntimeError(f"building the model broke the tie of {names}")
