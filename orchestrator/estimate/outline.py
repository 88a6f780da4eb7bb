"""A model as the planner sees it: shapes by unit, without values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Parameter:
    """Args:
    shape: as torch has it, before any sharding.
    trainable: whether it gets a gradient and optimizer state.
    item_bytes: of one number as it is stored.
    split: the dimension that tensor parallelism splits; None: each rank of a group has all of it.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool = True
    item_bytes: int = 4
    split: int | None = None

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Unit:
    """What is gathered and sharded together: a block, or the rest of the model.

    Args:
        activation_bytes: what one sequence leaves for the backward pass, by
            "FORMAT/CHECKPOINTING", such as "bf16/full"; empty where the formula holds.
    """

    name: str
    parameters: tuple[Parameter, ...]
    activation_bytes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """The same for units of equal parameters, of which a comparison reckons one."""
        return tuple((p.shape, p.trainable, p.item_bytes, p.split) for p in self.parameters)

    @cached_property
    def numel(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)


@dataclass(frozen=True)
class Outline:
    """A model.

    Args:
        units: those sharded one by one, in the order of the forward pass.
        root: all that is in none of them.
        layers, heads, width, vocab_size: of the bundled GPT; 0 where they are not known.
        working_bytes: by "FORMAT/CHECKPOINTING", what there is beside activations at the peak of a
            pass of one sequence; empty where the formula holds.
        flops_per_token: of training, forward and backward; None where it is not known.
        buffer_bytes: of all buffers.
        left_out: what the figures of this model do not hold, in words.
    """

    units: tuple[Unit, ...]
    root: Unit
    layers: int
    heads: int
    width: int
    vocab_size: int
    dropout: float
    flops_per_token: float | None
    buffer_bytes: int = 0
    working_bytes: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def parameters(self) -> Iterator[Parameter]:
        for unit in (*self.units, self.root):
            yield from unit.parameters

    @cached_property
    def numel(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)


def is_trained(unit: Unit) -> bool:
    """Return whether any parameter of a unit gets a gradient."""
    return any(parameter.trainable for parameter in unit.parameters)
