"""Traffic of strategies that shard: fully_shard (FSDP2) and FullyShardedDataParallel (FSDP1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.groups import copies_group, shard_group
from orchestrator.estimate.held import flat_length, whole_numbers
from orchestrator.estimate.outline import Outline, Unit, is_trained
from orchestrator.estimate.setting import ITEM_BYTES, Setting
from orchestrator.estimate.traffic_whole import syncs


@dataclass(frozen=True)
class _Sizes:
    """Bytes of one unit: gathered, and reduced (0 where nothing of it is trained)."""

    gathered: int
    reduced: int


def sharded(setting: Setting, outline: Outline) -> list[Transfer]:
    """Return gathers of parameters, and sums of gradients in a group and between groups."""
    *units, root = _sizes(setting, (*outline.units, outline.root))
    return [
        *_forward_gathers(setting, units, root),
        *_backward_gathers(setting, units, root),
        *_reductions(setting, units, root),
    ]


def _sizes(setting: Setting, units: Iterable[Unit]) -> list[_Sizes]:
    """Those of equal units are reckoned once: a comparison asks for many settings."""
    of_unit = _sizes_1 if setting.fsdp.version == 1 else _sizes_2
    known: dict[object, _Sizes] = {}
    found = []
    for unit in units:
        key = tuple((p.shape, p.trainable, p.item_bytes, p.split) for p in unit.parameters)
        if key not in known:
            known[key] = of_unit(setting, unit)
        found.append(known[key])
    return found


def _sizes_1(setting: Setting, unit: Unit) -> _Sizes:
    numel = flat_length(setting, unit)
    reduced = numel * ITEM_BYTES[setting.reductions] if is_trained(unit) else 0
    return _Sizes(numel * ITEM_BYTES[setting.precision], reduced)


def _sizes_2(setting: Setting, unit: Unit) -> _Sizes:
    narrow = None if setting.precision == "fp32" else ITEM_BYTES[setting.precision]
    numels = [(p, whole_numbers(setting, Unit(p.name, (p,)))) for p in unit.parameters]
    gathered = sum(numel * (narrow or p.item_bytes) for p, numel in numels)
    trained = sum(numel for p, numel in numels if p.trainable)
    return _Sizes(gathered, trained * ITEM_BYTES[setting.reductions])


def _forward_gathers(setting: Setting, units: list[_Sizes], root: _Sizes) -> list[Transfer]:
    all_units = [unit for unit in (root, *units) if unit.gathered]
    passes = forward_passes(setting)
    return shard_group(setting).transfer(
        "all_gather",
        "parameters, forward",
        sum(unit.gathered for unit in all_units) * passes,
        len(all_units) * passes,
        phase="forward",
        passes=passes,
        edge_bytes=all_units[0].gathered * passes if all_units else 0,
    )


def forward_passes(setting: Setting) -> int:
    """FSDP1 keeps what SHARD_GRAD_OP gathered until a pass that sums gradients."""
    keeps = setting.fsdp.version == 1 and not reshards(setting)
    return syncs(setting) if keeps else setting.accumulation


def reshards(setting: Setting) -> bool | int:
    """Return whether units drop what they gathered after the forward pass; a number: of ranks
    over which they keep it."""
    given = setting.fsdp.reshard_after_forward
    if setting.strategy == "shard_grad_op" and (given is None or setting.fsdp.version == 1):
        return False
    if given is None or setting.fsdp.version == 1:
        return given is not False
    return given


def gathered_numel(setting: Setting, outline: Outline) -> int:
    """Return how many numbers of a whole copy are gathered from their shards in one step."""
    units = sum(unit.numel for unit in outline.units)
    gathered = (units + outline.root.numel) * forward_passes(setting)
    # Those kept over some of the ranks (a number) are on the device already.
    if reshards(setting) is True:
        root = 0 if keeps_root(setting) else outline.root.numel
        gathered += (units + root) * setting.accumulation
    return gathered


def keeps_root(setting: Setting) -> bool:
    """Left to torch, the root keeps its parameters: the backward pass needs them first."""
    return setting.fsdp.version == 1 or setting.fsdp.reshard_after_forward is None


def _backward_gathers(setting: Setting, units: list[_Sizes], root: _Sizes) -> list[Transfer]:
    again = reshards(setting)
    if again is False:
        return []
    group = shard_group(setting, None if again is True else again)
    root_too = [] if keeps_root(setting) else [root]
    found = [unit for unit in (*units, *root_too) if unit.gathered]
    passes = setting.accumulation
    return group.transfer(
        "all_gather",
        "parameters, backward",
        sum(unit.gathered for unit in found) * passes,
        len(found) * passes,
        phase="backward",
        passes=passes,
        edge_bytes=found[-1].gathered * passes if found else 0,
    )


def _reductions(setting: Setting, units: list[_Sizes], root: _Sizes) -> list[Transfer]:
    trained = [unit.reduced for unit in (root, *units) if unit.reduced]
    if not trained:
        return []
    passes = syncs(setting)
    total, calls = sum(trained) * passes, len(trained) * passes
    parts, edge = setting.num_shards, trained[0] * passes
    return [
        *shard_group(setting).transfer(
            "reduce_scatter", "gradients", total, calls,
            phase="backward", passes=passes, edge_bytes=edge,
        ),
        *copies_group(setting).transfer(
            "all_reduce", "gradients between copies", total // parts, calls,
            phase="backward", passes=passes, edge_bytes=edge // parts,
        ),
    ]  # fmt: skip
