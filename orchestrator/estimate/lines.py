"""Between a setting and the job file: which lines make it, and the job with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

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
ACROSS_NODES = "parallelism.fsdp.across_nodes"


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


def changes(before: Setting, after: Setting) -> dict[str, Any]:
    """Return what differs, in the job file's form, by key with dots."""
    found = {}
    for name, key in KEYS.items():
        value = getattr(after, name)
        if value != getattr(before, name) and value is not None:
            found[key] = value
    if "parallelism.shard_group" in found and _is_default_group(after):
        del found["parallelism.shard_group"]
    if crosses_nodes(after) and not crosses_nodes(before):
        found[ACROSS_NODES] = True
    return found


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
    resources = spec.resources
    if setting.num_nodes != resources.max_nodes:
        resources = _changed(resources, nodes=setting.num_nodes)
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
    """Leave out the options of the wrapper that is not used."""
    idle: dict[str, object] = {}
    if not parallelism.uses_ddp:
        idle["ddp"] = type(parallelism.ddp).model_construct()
    if not parallelism.uses_fsdp:
        idle["fsdp"] = type(parallelism.fsdp).model_construct()
        idle["wrap"] = type(parallelism.wrap).model_construct()
        idle |= {"reductions": "fp32", "buffers": None}
    elif parallelism.strategy != "hybrid_shard" and parallelism.fsdp.across_nodes:
        idle["fsdp"] = _changed(parallelism.fsdp, across_nodes=False)
    return _changed(parallelism, **idle)


def _changed(part: P, **values: object) -> P:
    """Return a copy of the part with the values that differ, or the part itself: what is set
    counts as written."""
    new = {name: value for name, value in values.items() if getattr(part, name) != value}
    return part.model_copy(update=new) if new else part
