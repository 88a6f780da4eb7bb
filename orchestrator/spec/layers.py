"""The layers that a job is made of, and their merging: maps merge, lists and scalars replace.

From the weakest to the strongest: the profile's defaults, the job file, its `clusters.NAME`,
`--set`. What none of them gives is the model's default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from orchestrator.errors import Fault, Position
from orchestrator.source import Document, parse_value
from orchestrator.source.document import split_lines
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.timeouts import UNWRITTEN

SET = "--set"
FABRIC: KeyPath = ("network", "fabric")


class ProfileLike(Protocol):
    """What is needed of a cluster profile here; ClusterProfile has it."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def runs_root(self) -> str: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def slurm(self) -> Mapping[str, Any]: ...
    @property
    def kubernetes(self) -> Mapping[str, Any]: ...
    @property
    def fabric(self) -> str | None: ...
    @property
    def document(self) -> Document | None: ...


class Layer(NamedTuple):
    """Part of a document that is laid over weaker parts.

    Args:
        kind: `profile`, `job`, `cluster` or `--set`.
        document: where it was read.
        prefix: where in the document it is.
        data: its data, as a partial job.
        name: the cluster or profile.
        moved: where in the document, from the prefix, a key is that the job has somewhere else.
    """

    kind: str
    document: Document
    prefix: KeyPath
    data: Mapping[str, Any]
    name: str = ""
    moved: Mapping[KeyPath, KeyPath] = MappingProxyType({})

    def _place(self, path: KeyPath) -> KeyPath:
        return self.prefix + self.moved.get(path, path)

    def fault(self, problem: Problem) -> Fault:
        """Return the problem with its place in this layer's document."""
        path = self._place(problem.path)
        return self.document.fault(path, problem.message, problem.fix, at=problem.at)

    def label(self, path: KeyPath) -> str:
        """Return where this layer gives a value, for `explain`."""
        position = self.document.position(self._place(path))
        file = self.document.file
        where = f"{file}:{position.line}:{position.column}" if position else file
        if self.kind == "cluster":
            return f"clusters.{self.name} in {where}"
        if self.kind == "profile":
            return f"profile {self.name} ({where})"
        return SET if self.kind == SET else where


def job_layers(document: Document) -> tuple[Layer, dict[str, Layer], list[Fault]]:
    """Return the job file's own layer, those of its clusters by name, and faults of their form."""
    data = {name: value for name, value in document.data.items() if name != "clusters"}
    job = Layer("job", document, (), _own_data(data, document))
    clusters = document.data.get("clusters")
    if clusters is None:
        return job, {}, []
    if not isinstance(clusters, dict):
        return job, {}, [_no_map(document, ("clusters",))]
    layers, faults = {}, []
    for name, part in clusters.items():
        path = ("clusters", name)
        if part is not None and not isinstance(part, dict):
            faults.append(_no_map(document, path))
        else:
            layers[name] = Layer("cluster", document, path, _own_data(part or {}, document), name)
    return job, layers, faults


def _no_map(document: Document, path: KeyPath) -> Fault:
    return document.fault(
        path,
        "a map (lines of `key: value`) belongs here",
        "write a profile's name, and below it the keys that differ there, as in the whole file",
        at="value",
    )


def profile_layers(profile: ProfileLike) -> list[Layer]:
    """Return a profile's defaults as the weakest layer, and its site facts as the next."""
    given = {"slurm": profile.slurm, "kubernetes": profile.kubernetes}
    facts: dict[str, Any] = {name: dict(facts) for name, facts in given.items() if facts}
    document = profile.document
    if profile.fabric is not None:
        facts["network"] = {"fabric": _beside(profile.fabric, document)}
    defaults = _own_data(profile.defaults, document)
    prefix: KeyPath = ("clusters", profile.name)
    if document is None:  # made in code, not read from a file
        document, prefix = Document(f"profile {profile.name}", "", {}, {}), ()
    return [
        Layer("profile", document, (*prefix, "defaults") if prefix else (), defaults, profile.name),
        Layer("profile", document, prefix, facts, profile.name, {FABRIC: ("fabric",)}),
    ]


def _own_data(data: Mapping[str, Any], document: Document | None) -> dict[str, Any]:
    """Return the data of a file without empty sections, with its fabric beside the file."""
    own = without_empty_sections(data)
    network = own.get("network")
    if isinstance(network, dict) and isinstance(network.get("fabric"), str):
        network["fabric"] = _beside(network["fabric"], document)
    return own


def _beside(fabric: str, document: Document | None) -> str:
    return fabric if document is None else fabric_beside(fabric, document.file)


def fabric_beside(fabric: str, file: str) -> str:
    """Return a fabric's name as it is, and a path as one relative to the file that gives it."""
    if "/" not in fabric:
        return fabric
    return os.path.join(os.path.dirname(file), fabric)  # which keeps a ./ in front


def without_empty_sections(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the data without sections that hold nothing: a key whose lines are all comments."""
    kept = {}
    for name, value in data.items():
        full = f"{path}.{name}" if path else str(name)
        if value is None and _is_section(full):
            continue
        kept[name] = without_empty_sections(value, full) if isinstance(value, dict) else value
    return kept


def _is_section(path: str) -> bool:
    """Return whether a map belongs at a path, and null does not."""
    from orchestrator.spec.keys import fields_by_path  # late: few job files have a null

    info = fields_by_path().get(path)
    return info is not None and info.section and not info.optional


def set_layer(sets: Sequence[str]) -> tuple[Layer, list[Fault]]:
    """Return the `--set` options as the strongest layer, and faults of their form.

    Args:
        sets: `a.b=value` each; a later one wins over an earlier one. See parse_value for values;
            those of environment variables are texts as they stand.
    """
    data: dict[str, Any] = {}
    keys: dict[KeyPath, Position] = {}
    values: dict[KeyPath, Position] = {}
    faults = []
    text = "\n".join(" ".join(split_lines(option)) for option in sets)
    for line, option in enumerate(sets, start=1):
        name, equals, raw = option.partition("=")
        path = tuple(name.strip().split("."))
        position = Position(line, 1)
        try:
            _check_set(path, equals)
            value = raw if _is_variable(path) and raw[:1] not in ('"', "'") else parse_value(raw)
        except ValueError as error:
            spot = Document(SET, text, {}, {(): position}, {})
            faults.append(spot.fault((), str(error), "write --set resources.nodes=2"))
            continue
        put(data, path, value)
        for end in range(1, len(path) + 1):
            keys[path[:end]] = position
        values[path] = Position(line, len(name) + 2)
    document = Document(SET, text, data, keys, values)
    return Layer(SET, document, (), data), faults


def _check_set(path: tuple[str, ...], equals: str) -> None:
    if not equals:
        raise ValueError("there is no = in it")
    if not all(path):
        raise ValueError("the key before the = is empty, or has an empty part")
    if any("[" in part for part in path):
        raise ValueError("one item of a list cannot be set; set the whole list, as key=[a, b]")


def _is_variable(path: tuple[str, ...]) -> bool:
    return path[:-1] in (("env",), ("network", "env"))


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Store a value in nested maps, which are made where they are missing."""
    for part in path[:-1]:
        below = data.get(part)
        if not isinstance(below, dict):
            below = data[part] = {}
        data = below
    data[path[-1]] = value


@dataclass
class Merged:
    """All layers in one.

    Args:
        data: the whole job.
        owners: which layer gave each value, and each map last.
    """

    data: dict[str, Any] = field(default_factory=dict)
    owners: dict[KeyPath, Layer] = field(default_factory=dict)

    def owner(self, path: KeyPath) -> Layer | None:
        """Return who gave what is at a path, or the nearest thing above it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.owners:
                return self.owners[path[:end]]
        return None

    @property
    def context(self) -> dict[str, set[str]]:
        """What the job's validation is told: which limits nobody but the profile gives."""
        found = (path for path, layer in self.owners.items() if layer.kind == "profile")
        return {UNWRITTEN: {str(path[1]) for path in found if path[0] == "timeouts" and path[1:]}}


def merge(layers: Iterable[Layer]) -> Merged:
    """Return the layers in one; a later layer wins over an earlier one."""
    merged = Merged()
    for layer in layers:
        _merge_into(merged, merged.data, layer.data, (), layer)
    return merged


def _merge_into(
    merged: Merged, base: dict[str, Any], over: Mapping[str, Any], path: KeyPath, layer: Layer
) -> None:
    for name, value in over.items():
        here = (*path, name)
        if isinstance(value, dict):
            if not isinstance(base.get(name), dict):
                base[name] = {}
            # The job file is where one looks for a key that is missing in a map.
            owner = merged.owners.get(here)
            if owner is None or owner.kind != "job" or name not in base:
                merged.owners[here] = layer
            _merge_into(merged, base[name], value, here, layer)
            continue
        for below in [p for p in merged.owners if p[: len(here)] == here]:
            del merged.owners[below]
        base[name] = value
        merged.owners[here] = layer
