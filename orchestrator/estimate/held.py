"""What a rank holds between steps: parameters, gradients and optimizer state, exactly.

Sources: torch's docs of fully_shard (dimension 0 in equal runs of rows, the last ones padded);
Zhao et al., "PyTorch FSDP" (2023), section 3.2 (flat parameters).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from orchestrator.estimate.outline import Outline, Parameter, Unit
from orchestrator.estimate.setting import ITEM_BYTES, Setting

FLAT_ALIGNMENT_BYTES = 16  # torch/distributed/fsdp/_flat_param.py, _get_aligned_numel
STEP_BYTES = 4  # torch's optimizers count each parameter's steps in a tensor of their own

# Bytes of optimizer state for each number of 4 bytes, and tensors that count its steps. AdamW: two
# moments. 8-bit: Dettmers et al., "8-bit Optimizers" (2022), section 2: two bytes, and two scales
# of 4 bytes for each block of 256 (bitsandbytes) numbers.
STATES = {
    "adamw": (8.0, 1),
    "sgd": (0.0, 0),
    "momentum": (4.0, 0),
    "adamw8bit": (2 + 2 * 4 / 256, 0),
}


class Held(NamedTuple):
    """Bytes of one rank after a step, padding included."""

    parameters: int
    gradients: int
    optimizer: int


class Part(NamedTuple):
    """A rank's part of a parameter.

    Args:
        stored: numbers with padding; trained: those that the optimizer has state for.
    """

    stored: int
    trained: int


def held(setting: Setting, outline: Outline, rank: int = 0) -> Held:
    """Return what a rank of a job holds.

    Rank 0 holds as much as any, but for FSDP1's optimizer state: there, gaps between parameters
    fall on other ranks too, some bytes for each parameter.
    """
    units = (*outline.units, outline.root)
    known = {kind: _of_unit(setting, unit, rank) for kind, unit in kinds(units).items()}
    found = [known[unit.kind] for unit in units]
    return Held(*(sum(values) for values in zip(*found, strict=True)))


def kinds(units: Iterable[Unit]) -> dict[object, Unit]:
    """Return one unit of each kind."""
    return {unit.kind: unit for unit in units}


def split(parameter: Parameter, tensor: int) -> tuple[int, ...]:
    """Return the shape that a rank of a tensor group has."""
    shape = list(parameter.shape)
    if parameter.split is not None:
        shape[parameter.split] //= tensor
    return tuple(shape)


def whole_numbers(setting: Setting, unit: Unit) -> int:
    """Return the numbers of a unit that is gathered, padding included."""
    if _is_flat(setting):
        return flat_length(setting, unit)
    shapes = (split(parameter, setting.tensor) for parameter in unit.parameters)
    return sum(setting.num_shards * _rows(shape, setting.num_shards) for shape in shapes)


def flat_length(setting: Setting, unit: Unit) -> int:
    """Return the numbers of a unit's flat parameter, padding included."""
    padded_for = setting.num_ranks if setting.strategy == "no_shard" else setting.num_shards
    end = max((run.stop for run in _runs(setting, unit)), default=0)
    return math.ceil(end / padded_for) * padded_for


def _is_flat(setting: Setting) -> bool:
    return setting.fsdp.version == 1 and (setting.shards or setting.strategy == "no_shard")


def _of_unit(setting: Setting, unit: Unit, rank: int) -> Held:
    if _is_flat(setting):
        parts = _flat_parts(setting, unit, rank)
        stored = flat_length(setting, unit) // setting.num_shards * 4
        trained = any(parameter.trainable for parameter in unit.parameters)
        return Held(stored, stored if trained else 0, _states(setting, parts))
    parts = [(p, _part(setting, p, rank)) for p in unit.parameters]
    return Held(
        sum(part.stored * p.item_bytes for p, part in parts),
        sum(part.stored * p.item_bytes for p, part in parts if p.trainable),
        _states(setting, parts),
    )


def _states(setting: Setting, parts: list[tuple[Parameter, Part]]) -> int:
    per_number, steps = STATES[setting.optimizer]
    return sum(
        math.ceil(part.trained * per_number * p.item_bytes / 4) + steps * STEP_BYTES
        for p, part in parts
        if p.trainable
    )


def _part(setting: Setting, parameter: Parameter, rank: int) -> Part:
    shape, parts = split(parameter, setting.tensor), setting.num_shards
    if parts == 1:
        return Part(math.prod(shape), math.prod(shape))
    shard = rank // setting.tensor % parts
    return Part(_rows(shape, parts), _rows(shape, parts, shard))


def _rows(shape: tuple[int, ...], parts: int, part: int | None = None) -> int:
    """Numbers of equal runs of rows, the last ones short or empty; part None: the padded length."""
    if not shape:
        shape = (1,)
    rows = math.ceil(shape[0] / parts)
    own = rows if part is None else max(0, min(rows, shape[0] - part * rows))
    return own * math.prod(shape[1:])


def _runs(setting: Setting, unit: Unit) -> Iterator[range]:
    """Where each parameter lies in the flat one: aligned in the format of the computation."""
    align, end = FLAT_ALIGNMENT_BYTES // ITEM_BYTES[setting.precision], 0
    for parameter in unit.parameters:
        first = math.ceil(end / align) * align
        end = first + parameter.numel
        yield range(first, end)


def _flat_parts(setting: Setting, unit: Unit, rank: int) -> list[tuple[Parameter, Part]]:
    """Parameters of which the rank's run of the flat one has any number."""
    run = flat_length(setting, unit) // setting.num_shards
    first = rank % setting.num_shards * run
    found = []
    for parameter, place in zip(unit.parameters, _runs(setting, unit), strict=True):
        own = len(range(max(place.start, first), min(place.stop, first + run)))
        if own:
            found.append((parameter, Part(own, own)))
    return found
