"""Between a setting and the job file: which lines make it, and the job with them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from orchestrator.spec.base import Part

if TYPE_CHECKING:
    from orchestrator.estimate.setting import Setting
    from orchestrator.spec import JobSpec
    from orchestrator.spec.parallelism import Parallelism

P = TypeVar("P", bound=Part)

# Parts of a setting that advice may change, and where the job file has them.
KEYS = {
    "num_nodes": "resources.nodes",
    "strategy": "parallelism.strategy",
    "shard_group": "parallelism.shard_group",
    "checkpointing": "parallelism.activation_checkpointing",
    "cpu_offload": "parallelism.cpu_offload",
    "gradient_sync": "parallelism.gradient_sync",
    "micro": "train.batch.micro",
    "accumulation": "train.batch.accumulation",
    "context": "train.model.context",
}
# Where the keys are that differ between a job and the job with a setting in it.
PARTS = (
    "resources",
    "parallelism",
    "parallelism.ddp",
    "parallelism.fsdp",
    "parallelism.wrap",
    "train.model",
    "train.batch",
)


class Change(NamedTuple):
    """What to do to a job file.

    Args:
        set: what to write, by key with dots.
        unset: keys to take out: they would be faults, or would make another setting.
    """

    set: dict[str, Any]
    unset: tuple[str, ...]


def given(spec: JobSpec) -> frozenset[str]:
    """Return which parts of a setting the job itself, or its cluster's profile, has written."""
    parallelism, batch = spec.parallelism, spec.train.batch
    names = {"num_nodes", "context"}
    if parallelism.strategy != "auto":
        names.add("strategy")
    for name in ("shard_group", "cpu_offload", "gradient_sync", "checkpointing"):
        names.update([name] if parallelism.given(KEYS[name].rpartition(".")[2]) else [])
    if batch.given("micro", "accumulation"):
        names |= {"micro", "accumulation"}
    return frozenset(names)


def crosses_nodes(setting: Setting) -> bool:
    """Whether a shard group of hybrid_shard lies on several nodes."""
    group = setting.shard_group
    return group is not None and setting.ranks_per_node % (group * setting.tensor) != 0


def changes(spec: JobSpec, setting: Setting) -> Change:
    """Return what makes the job file, as it is written, one that has the setting."""
    after = spec_with(left_open(spec), setting)
    found = Change({}, ())
    for path in PARTS:
        found = _differing(path, attrgetter(path)(spec), attrgetter(path)(after), found)
    return found


def _differing(path: str, before: Part, after: Part, found: Change) -> Change:
    names = [name for name in type(before).model_fields if f"{path}.{name}" not in PARTS]
    written, stays = before.given(*names), after.given(*names)
    new = {n: getattr(after, n) for n in stays if getattr(after, n) != getattr(before, n)}
    return Change(
        {**found.set, **{f"{path}.{name}": value for name, value in new.items()}},
        (*found.unset, *(f"{path}.{name}" for name in written if name not in stays)),
    )


def _is_default_group(setting: Setting) -> bool:
    return setting.shard_group == setting.ranks_per_node // setting.tensor


def yaml_lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of a job file that hold these values, sections written once."""
    tree: dict[str, Any] = {}
    for key, value in found.items():
        *sections, last = key.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = value
    return list(_lines(tree, ""))


def _lines(tree: dict[str, Any], indent: str) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            words = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{indent}{name}: {words}"


def left_open(spec: JobSpec) -> JobSpec:
    """Return the job as if it had `strategy: auto`: options of a wrapper that another strategy does
    not use are left out under it, instead of being faults."""
    return _changed(spec, parallelism=_changed(spec.parallelism, strategy="auto"))


def spec_with(spec: JobSpec, setting: Setting) -> JobSpec:
    """Return the job with the setting in it: its nodes, batch and parallelism. It is not checked.

    Options below ddp, fsdp and wrap hold under a strategy that has them, and are left out under
    others: under `strategy: auto` they are written before it is known which holds.
    """
    batch = _changed(spec.train.batch, micro=setting.micro, accumulation=setting.accumulation)
    train = spec.train if batch is spec.train.batch else _changed(spec.train, batch=batch)
    if train.model.sizes and train.model.sizes.context != setting.context:
        train = _changed(train, model=_changed(train.model, context=setting.context))
    resources = spec.resources
    if setting.num_nodes != resources.max_nodes:
        resources = _changed(resources, nodes=setting.num_nodes)
    if setting.ranks_per_node != resources.num_ranks_per_node:  # one for each GPU
        resources = _unwritten(resources, "ranks_per_node")
    parallelism = _parallelism(spec, setting)
    return spec.model_copy(
        update={"resources": resources, "train": train, "parallelism": parallelism}
    )


def _parallelism(spec: JobSpec, setting: Setting) -> Parallelism:
    before = spec.parallelism
    group = setting.shard_group
    if group is not None and before.shard_group is None and _is_default_group(setting):
        group = None
    after = _changed(
        before,
        strategy=setting.strategy,
        shard_group=group,
        precision=setting.precision,
        activation_checkpointing=setting.checkpointing,
        cpu_offload=setting.cpu_offload,
        gradient_sync=setting.gradient_sync,
    )
    if crosses_nodes(setting):
        after = _changed(after, fsdp=_changed(after.fsdp, across_nodes=True))
    return _without_idle(after) if before.strategy == "auto" else after


def _without_idle(parallelism: Parallelism) -> Parallelism:
    """Leave out what does nothing: options of the wrapper that is not used, and the like."""
    idle, fsdp = [], parallelism.fsdp
    if not parallelism.uses_ddp:
        idle.append("ddp")
    if not parallelism.uses_fsdp:
        idle += ["fsdp", "wrap", "reductions", "buffers"]
    elif parallelism.strategy != "hybrid_shard" and fsdp.given("across_nodes"):
        parallelism = _changed(parallelism, fsdp=_unwritten(fsdp, "across_nodes"))
    if parallelism.activation_checkpointing == "none":
        idle.append("activation_checkpointing_every")
    return _unwritten(parallelism, *idle)


def _changed(part: P, **values: object) -> P:
    """Return a copy of the part with the values that differ, or the part itself: what is set
    counts as written."""
    new = {name: value for name, value in values.items() if getattr(part, name) != value}
    return part.model_copy(update=new) if new else part


def _unwritten(part: P, *names: str) -> P:
    """Return a copy of the part in which these keys were never written, or the part itself."""
    if part.model_fields_set.isdisjoint(names):
        return part
    fields = type(part).model_fields
    values: dict[str, Any] = {name: getattr(part, name) for name in fields}
    for name in names:
        before = values[name]
        values[name] = (
            type(before).model_construct() if isinstance(before, Part) else fields[name].default
        )
    written = part.model_fields_set.difference(names)
    return cast(P, type(part).model_construct(written, **values))
