"""Layers to a checked job, with all faults of all layers at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import Fault, FaultsError, Position
from orchestrator.source import Document, expand, unexpanded_by_path
from orchestrator.spec.base import PROBLEMS, KeyPath, Part, Problem, key_of
from orchestrator.spec.cluster import MAX_NODES
from orchestrator.spec.environment import secret_problems
from orchestrator.spec.job import JobSpec
from orchestrator.spec.kubernetes_target import target_problems
from orchestrator.spec.layers import (
    Layer,
    Merged,
    ProfileLike,
    job_layers,
    merge,
    profile_layers,
    set_layer,
)
from orchestrator.spec.train import MAX_STEPS

if TYPE_CHECKING:
    from orchestrator.spec.elements import Element

SITE_SECTIONS = ("slurm", "kubernetes")
SITE_FACTS = Problem(
    (),
    "a site's facts belong to a cluster, and a job file is for all of them",
    "write it in the cluster profile, or below clusters.NAME in this file",
    "key",
)


class Origin(NamedTuple):
    """Where a value comes from.

    Args:
        kind: `--set`, `cluster`, `job`, `profile` or `default`.
        label: in words: `job.yaml:7:3`, `--set`, `clusters.NAME in job.yaml:9:5`,
            `profile NAME (file:line:column)`, `default`.
    """

    kind: str
    label: str


class ResolvedJob(NamedTuple):
    """A checked job and where each of its values comes from.

    Args:
        spec: the job.
        origins: for the path of each value; a list is one value, a map has one for each key.
        document: the job file.
        merged: all layers in one, for the place of a value.
        variables: a fault for each value that still holds a variable such as `${NAME}`, because
            the document has not been expanded; `render` refuses these. Values that `--set` or
            another layer replaces do not count.
        elements: those of the job's sweep, in their order; none without a sweep.
        chosen: what `parallelism.strategy: auto` has become and why, a line each.
        written: the job with its `auto`, where the one here has become something else.
    """

    spec: JobSpec
    origins: Mapping[KeyPath, Origin]
    document: Document
    merged: Merged
    variables: tuple[Fault, ...] = ()
    elements: tuple[Element, ...] = ()
    chosen: tuple[str, ...] = ()
    written: JobSpec | None = None

    @property
    def specs(self) -> list[JobSpec]:
        """The job, and each element of its sweep."""
        return [self.spec, *(element.spec for element in self.elements)]

    def fault(self, problem: Problem) -> Fault:
        """Return a problem of the whole at the place that gave the value, else in the job file."""
        owner = self.merged.owner(problem.path)
        if owner is None:
            return self.document.fault(problem.path, problem.message, problem.fix, at=problem.at)
        return owner.fault(problem)


def resolve_job(
    document: Document, profile: ProfileLike | None = None, sets: Sequence[str] = ()
) -> ResolvedJob:
    """Return the job that a file, a profile and `--set` options make together.

    Args:
        document: the job file. Has it not been expanded, its variables stay as they are, and
            `$${` becomes `${`.
        profile: the cluster; its name picks the job file's `clusters.NAME`.
        sets: `a.b=value` each.

    Raises:
        FaultsError: everything that is wrong in any layer, each at its own place. The job file's
            overrides for other clusters are judged as well.
    """
    variables = unexpanded_by_path(document)
    job, clusters, faults = job_layers(
        expand(document, None) if not document.expanded else document
    )
    over, set_faults = set_layer(sets)
    layers = profile_layers(profile) if profile is not None else []
    layers.append(job)
    if profile is not None and profile.name in clusters:
        layers.append(clusters[profile.name])
    layers.append(over)
    faults += [*document.faults, *set_faults]
    given = [name for name in SITE_SECTIONS if name in job.data]
    faults += [job.fault(SITE_FACTS.under((name,))) for name in given]
    others = [layer for layer in clusters.values() if layer not in layers]
    bad: set[KeyPath] = set()
    for layer in (*layers, *others):
        for problem in layer_problems(layer.data):
            faults.append(layer.fault(problem))
            if layer not in others:
                bad |= {problem.path, *problem.involves}
    merged = merge(layers)
    spec, problems = judge(merged, bad)
    if spec is not None and profile is not None:
        problems += target_problems(spec, profile)
    faults += [_fault(merged, job, problem) for problem in problems]
    if faults or spec is None:
        raise FaultsError(_sorted(faults, document.file))
    left = [fault for path, fault in variables.items() if _holds(merged, clusters, job, path)]
    elements = _elements(layers, merged, spec)
    return ResolvedJob(spec, _origins(spec, merged), document, merged, tuple(left), elements)


def _elements(layers: Sequence[Layer], merged: Merged, spec: JobSpec) -> tuple[Element, ...]:
    """Return the elements of the job's sweep. Raises FaultsError with what is wrong with them."""
    if spec.sweep is None:
        return ()
    from orchestrator.spec.elements import resolve_elements  # late: few jobs have a sweep

    elements, faults = resolve_elements(layers, merged, spec.sweep)
    if faults:
        raise FaultsError(_sorted(faults, faults[0].file))
    return tuple(elements)


def _holds(merged: Merged, clusters: Mapping[str, Layer], job: Layer, path: KeyPath) -> bool:
    """Return whether what the job file has at a path is part of the whole."""
    if path[0] != "clusters":
        return merged.owner(path) is job
    return merged.owner(path[2:]) is clusters.get(str(path[1]))


def layer_problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the keys of a partial job, each judged by itself."""
    for error in _errors(data):
        if not (_is_missing(error) or _is_consistency(error)):
            yield from problems_of(error)
    yield from secret_problems(data)


def problems_of(error: ErrorDetails) -> list[Problem]:
    """Return what one error of pydantic stands for, with paths from the job's root."""
    from orchestrator.spec import words  # late: a job file without faults needs no words

    return words.problems_of(error)


def _errors(data: Mapping[str, Any], context: dict[str, Any] | None = None) -> list[ErrorDetails]:
    try:
        JobSpec.model_validate(data, context=context)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _is_missing(error: ErrorDetails) -> bool:
    return error["type"] == "missing" and isinstance(error["loc"][-1], str)


def _is_consistency(error: ErrorDetails) -> bool:
    return error["type"] == PROBLEMS and not error["loc"]


# What stands in for a required value that is missing or faulty, so that the rest can be judged.
_STAND_INS: dict[KeyPath, Any] = {
    ("name",): "stand-in",
    ("resources", "nodes", "min"): 1,
    ("resources", "nodes", "max"): MAX_NODES,
    ("train",): {},
    ("train", "model"): {"preset": "nano"},
    ("train", "data"): {"python_docs": True},
    ("train", "data", "synthetic", "samples"): 1,
    ("train", "steps"): MAX_STEPS,
    ("slurm", "container", "runtime"): "pyxis",
    ("slurm", "container", "image"): "stand-in",
}
_MAX_ROUNDS = 8  # a stand-in or removal for each level of the tree, and some to spare


def judge(merged: Merged, bad: set[KeyPath]) -> tuple[JobSpec | None, list[Problem]]:
    """Return the job, or None and what is wrong with the whole.

    Args:
        merged: all layers in one.
        bad: paths at which a layer is faulty; what rests on them is not judged.
    """
    data = copy.deepcopy(merged.data)
    own, problems = merged.context, list[Problem]()
    for _ in range(_MAX_ROUNDS):
        errors = _errors(data, own)
        if not errors:
            spec = None if problems or bad else JobSpec.model_validate(data, context=own)
            return spec, problems
        if _is_consistency(errors[0]):
            found = problems_of(errors[0])
            return None, problems + [p for p in found if not _rests_on(p, bad)]
        for error in errors:
            path = tuple(error["loc"])
            if _is_missing(error):
                if not _touched(path, bad):
                    problems += problems_of(error)
                bad.add(path)
                if path in _STAND_INS:
                    _store(data, path, _STAND_INS[path])
                else:  # of an entry of a list or map, which goes as a whole
                    _remove(data, path[:-1])
            else:
                bad |= _drop(data, error)
    return None, problems


def _drop(data: dict[str, Any], error: ErrorDetails) -> set[KeyPath]:
    """Remove the faulty values, and return their paths."""
    paths = {problem.path for problem in problems_of(error)}
    for path in paths:
        _remove(data, path)
    return paths


def _remove(data: dict[str, Any], path: KeyPath) -> None:
    """Remove what is at a path; a list on the way there, or another value, goes as a whole."""
    where: Any = data
    for part in path[:-1]:
        below = where.get(part)
        if not isinstance(below, dict):
            where.pop(part, None)
            return
        where = below
    where.pop(path[-1], None)


def _store(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    where: Any = data
    for part in path[:-1]:
        where = where[part]
    where[path[-1]] = copy.deepcopy(value)


def _rests_on(problem: Problem, bad: set[KeyPath]) -> bool:
    """Return whether a problem is at a faulty path, or involves one or what is inside of it."""
    below = {path[:end] for path in bad for end in range(1, len(path) + 1)}
    return _touched(problem.path, bad) or any(
        path in below or _touched(path, bad) for path in problem.involves
    )


def _touched(path: KeyPath, bad: set[KeyPath]) -> bool:
    """Return whether a path is, or is inside of, a faulty one."""
    return any(path[:end] in bad for end in range(1, len(path) + 1))


def _fault(merged: Merged, job: Layer, problem: Problem) -> Fault:
    return (merged.owner(problem.path) or job).fault(problem)


def _sorted(faults: list[Fault], first: str) -> list[Fault]:
    """Return the faults by file and position, the job file's first; one for each place and key."""
    files = list(dict.fromkeys([first, *(fault.file for fault in faults)]))
    unique = {(f.file, f.position, f.key): f for f in reversed(faults)}
    return sorted(
        unique.values(), key=lambda f: (files.index(f.file), f.position or Position(0, 0))
    )


def _origins(spec: JobSpec, merged: Merged) -> dict[KeyPath, Origin]:
    default = Origin("default", "default")
    origins = {}
    for path in _leaves(spec, ()):
        layer = merged.owners.get(path)
        origins[path] = Origin(layer.kind, layer.label(path)) if layer is not None else default
    return origins


def _leaves(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, Part):
        for name, info in type(value).model_fields.items():
            yield from _leaves(getattr(value, name), (*path, key_of(name, info)))
    elif isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _leaves(child, (*path, name))
    else:
        yield path
