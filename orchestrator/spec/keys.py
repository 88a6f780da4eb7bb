"""The list of all keys, for `explain`, the reference page and messages; made from the models."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic.fields import FieldInfo as PydanticField

from orchestrator.errors import UserError
from orchestrator.spec.base import Duration, KeyPath, OrMap, Part, TypeWords, key_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.later import LATER_KEYS
from orchestrator.spec.suggest import did_you_mean
from orchestrator.units import format_duration

CLUSTERS = (
    "What differs on a cluster: the profile's name, and below it the same keys as in the whole "
    "file. Applied before rendering."
)

# What stands in a path for one entry of a map or list whose entries are maps of keys.
ENTRY_MARKS: dict[type | None, str] = {dict: ".NAME", tuple: ".N"}


@dataclass(frozen=True)
class FieldInfo:
    """One key of the job file.

    Args:
        path: the key with dots, such as `resources.nodes`; NAME stands for a name that the user
            gives to an entry of a map, N for the number of one of a list.
        type: what belongs there, in words.
        default: what holds without it, as the job file would have it; `required` if it must be
            given, `none` if there is none.
        description: meaning, unit, and what it becomes on Slurm and on Kubernetes.
        supported: False for a key that a later release owns.
        section: whether it is a map of other keys.
        optional: whether null may be written.
    """

    path: str
    type: str
    default: str
    description: str
    supported: bool = True
    section: bool = False
    optional: bool = False


@cache
def fields() -> tuple[FieldInfo, ...]:
    """Return every key of the job file in its order, those of later releases last."""
    own = [*_walk(JobSpec, "")]
    own.append(FieldInfo("clusters", "map of cluster names to keys", "none", CLUSTERS))
    later = [
        FieldInfo(path, "not supported yet", "none", f"For {what}.", supported=False)
        for path, what in LATER_KEYS.items()
    ]
    return (*own, *later)


def part_fields(part: type[Part], prefix: str) -> tuple[FieldInfo, ...]:
    """Return the keys of a part that is not in the job file, each path with the prefix."""
    return tuple(_walk(part, prefix))


@cache
def fields_by_path() -> dict[str, FieldInfo]:
    """Return the keys by their path."""
    return {info.path: info for info in fields()}


@cache
def _entries() -> frozenset[str]:
    """Paths that end with a mark of ENTRY_MARKS and have keys below them."""
    parents = {info.path.rpartition(".")[0] for info in fields()}
    return frozenset(p for p in parents if p.endswith(tuple(ENTRY_MARKS.values())))


def listed_path(path: KeyPath) -> str:
    """Return a path of the data as the list of keys has it, with NAME and N for entries."""
    listed = ""
    for part in path:
        entry = listed + ENTRY_MARKS[tuple if isinstance(part, int) else dict]
        listed = entry if entry in _entries() else f"{listed}.{part}"
        listed = listed.removeprefix(".")
    return listed


def children(path: str) -> list[str]:
    """Return the names of the supported keys right below a section; `""` is the root. Below a map
    or list of parts these are the keys of an entry, behind its mark."""
    for mark in ENTRY_MARKS.values():
        if path + mark in _entries():
            return [f"{mark[1:]}.{name}" for name in children(path + mark)]
    prefix = f"{path}." if path else ""
    below = (f.path.removeprefix(prefix) for f in fields() if f.supported and _under(f, prefix))
    return [name for name in below if "." not in name]


def _under(info: FieldInfo, prefix: str) -> bool:
    return info.path.startswith(prefix)


def find_field(path: str) -> FieldInfo:
    """Return one key.

    Args:
        path: with dots, such as `resources.nodes`; an entry of a map or list by its name or
            number, as in `kubernetes.volumes.data.mount`.

    Raises:
        UserError: there is none; the text proposes what was probably meant.
    """
    known = fields_by_path()
    parts = (int(part) if part.isdecimal() else part for part in path.split("."))
    listed = path if path in known else listed_path(tuple(parts))
    if listed in known:
        return known[listed]
    same_name = [full for full in known if full.rpartition(".")[2] == path.rpartition(".")[2]]
    close = same_name or did_you_mean(listed, list(known), count=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`orchestrate explain` lists all"
    raise UserError(f"{path}: the job file has no such key; {hint}")


def _walk(model: type[Part], prefix: str) -> Iterator[FieldInfo]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{key_of(name, field)}"
        core, metadata, optional = unwrap(field.annotation, tuple(field.metadata))
        part = core if _is_part(core) else None
        yield FieldInfo(
            path=path,
            type="map" if part else _type_words(core, metadata),
            default=_default_words(field, metadata, part),
            description=field.description or "",
            section=part is not None or typing.get_origin(core) is dict,
            optional=optional,
        )
        for mark, below in _parts_below(core, metadata):
            yield from _walk(below, f"{path}{mark}.")


def _parts_below(core: Any, metadata: tuple[Any, ...]) -> Iterator[tuple[str, type[Part]]]:
    """Yield the parts whose keys stand below a key, each with what stands between in a path."""
    if _is_part(core):
        yield "", core
    for arg in typing.get_args(core):
        if _is_part(arg):
            yield ENTRY_MARKS[typing.get_origin(core)], arg
    yield from (("", item.part) for item in metadata if isinstance(item, OrMap))


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Part)


def unwrap(annotation: Any, metadata: tuple[Any, ...] = ()) -> tuple[Any, tuple[Any, ...], bool]:
    """Return a type without Annotated and `| None`, what was annotated, and whether None fits."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        core, *extra = typing.get_args(annotation)
        return unwrap(core, (*metadata, *extra))
    if origin in (types.UnionType, typing.Union):
        arms = typing.get_args(annotation)
        inner = [arg for arg in arms if arg is not type(None)]
        core, metadata, optional = unwrap(inner[0], metadata)
        return core, metadata, optional or len(inner) < len(arms)
    return annotation, metadata, False


_WORDS: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def _type_words(core: Any, metadata: tuple[Any, ...]) -> str:
    given = next((item.words for item in metadata if isinstance(item, TypeWords)), None)
    if given:
        return given
    if typing.get_origin(core) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(core))
    if typing.get_origin(core) is dict:
        return "map"
    return _WORDS[core] + _range_words(metadata)


_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
# Upper bounds that only catch slips of the keyboard say nothing to a reader.
_TOLD_BELOW = 1_000_000


def _range_words(metadata: tuple[Any, ...]) -> str:
    bounds = [bound for item in metadata for bound in getattr(item, "metadata", [item])]
    words = []
    for name, text in _BOUNDS.items():
        limit = next((getattr(b, name) for b in bounds if hasattr(b, name)), None)
        if limit is not None and limit < _TOLD_BELOW:
            words.append(f" {text} {limit}")
    return "".join(words)


def _default_words(field: PydanticField, metadata: tuple[Any, ...], part: type[Part] | None) -> str:
    if field.is_required():
        return "required"
    if part is not None or field.default_factory is not None or field.default is None:
        return "none"
    if TypeWords in map(type, metadata) and _is_duration(metadata):
        return format_duration(field.default)
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, tuple):
        return f"[{', '.join(map(str, field.default))}]"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _is_duration(metadata: tuple[Any, ...]) -> bool:
    words = next(item for item in typing.get_args(Duration) if isinstance(item, TypeWords))
    return words in metadata
