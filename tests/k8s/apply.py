"""Server-side apply and merge patches on plain objects.

Who holds a field is kept in metadata.managedFields as a real server does, so that it survives in
the object alone. Lists are atomic, as those of the custom resources are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from k8s.answers import field_conflict, twice
from k8s.discovery import Json
from k8s.objects import walk

Path = tuple[str, ...]
# What names the object, and what the server keeps, is nobody's field.
SERVERS = {"apiVersion", "kind", "status"}
METADATA = {"labels", "annotations", "ownerReferences", "finalizers"}
# Lists of a pod whose entries are told apart (x-kubernetes-list-map-keys).
KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath",
}  # fmt: skip


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All fields of an object that are no maps, by path; an empty map counts as a field."""
    if isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value


def fields_of(obj: Json) -> dict[Path, Any]:
    """The fields that a manager may hold."""
    held = {key: value for key, value in obj.items() if key not in SERVERS}
    metadata = held.get("metadata", {})
    held["metadata"] = {key: metadata[key] for key in METADATA if key in metadata}
    return {path: value for path, value in leaves(held) if path != ("metadata",)}


def refuse_twins(given: Json) -> None:
    """Raises ApiError where a list has an entry twice."""
    for path, value in walk(given):
        key = KEYS.get(path.rpartition(".")[2], "")
        if key and isinstance(value, list):
            names = [entry[key] for entry in value]
            if again := [name for n, name in enumerate(names) if name in names[:n]]:
                raise twice(path, key, again[0])


def apply(old: Json | None, given: Json, manager: str, *, force: bool) -> Json:
    """The object after an apply. Raises ApiError where another manager holds a field otherwise, or
    a list has an entry twice."""
    refuse_twins(given)
    new = copy.deepcopy(old) if old else {k: given[k] for k in ("apiVersion", "kind")}
    new.setdefault("metadata", {}).update(name=given["metadata"]["name"])
    wanted, holders = fields_of(given), owners(new)
    others = {
        path: name
        for name, (operation, paths) in holders.items()
        for path in paths
        if (name, operation) != (manager, "Apply")
    }
    current = dict(leaves(new))
    clash = {
        path: others[path]
        for path, value in wanted.items()
        if path in others and current.get(path) != value
    }
    if clash and not force:
        raise field_conflict(given["apiVersion"], {_dotted(p): m for p, m in clash.items()})
    _, before = holders.get(manager, ("", set()))
    for path in before - set(wanted) - set(others):
        _remove(new, path)
    for path, value in wanted.items():
        _set(new, path, copy.deepcopy(value))
    taken = {n: (op, paths - set(clash)) for n, (op, paths) in holders.items() if n != manager}
    return with_owners(new, {**taken, manager: ("Apply", set(wanted))})


def updated(old: Json | None, new: Json, manager: str) -> Json:
    """`new` with the fields that differ from `old` held by `manager`, by Update."""
    before = dict(leaves(old or {}))
    changed = {path for path, value in fields_of(new).items() if before.get(path) != value}
    if not changed:
        return new
    left = {name: (op, paths - changed) for name, (op, paths) in owners(new).items()}
    _, own = left.get(manager, ("Update", set()))
    return with_owners(new, {**left, manager: ("Update", own | changed)})


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, inner in patch.items():
        if inner is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), inner)
    return result


def owners(obj: Json) -> dict[str, tuple[str, set[Path]]]:
    """Operation and fields of each manager, from metadata.managedFields."""
    rows = obj.get("metadata", {}).get("managedFields", [])
    return {r["manager"]: (r["operation"], set(_paths(r["fieldsV1"]))) for r in rows}


def with_owners(obj: Json, holders: dict[str, tuple[str, set[Path]]]) -> Json:
    rows = [
        {
            "manager": name,
            "operation": operation,
            "apiVersion": obj["apiVersion"],
            "fieldsType": "FieldsV1",
            "fieldsV1": _tree(paths),
        }
        for name, (operation, paths) in holders.items()
        if paths
    ]
    obj["metadata"]["managedFields"] = rows
    return obj


def _tree(paths: set[Path]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        level = tree
        for part in path:
            level = level.setdefault(f"f:{part}", {})
    return tree


def _paths(tree: Json, path: Path = ()) -> Iterator[Path]:
    if not tree and path:
        yield path
    for key, inner in tree.items():
        yield from _paths(inner, (*path, key.removeprefix("f:")))


def _dotted(path: Path) -> str:
    return "".join(f".{part}" for part in path)


def _set(obj: Json, path: Path, value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(obj.get(part), dict):
            obj[part] = {}
        obj = obj[part]
    if value != {} or not isinstance(obj.get(path[-1]), dict):
        obj[path[-1]] = value


def _remove(obj: Json, path: Path) -> None:
    *parents, last = path
    chain = [obj]
    for part in parents:
        inner = chain[-1].get(part)
        if not isinstance(inner, dict):
            return
        chain.append(inner)
    chain[-1].pop(last, None)
    for parent, part in zip(reversed(chain[:-1]), reversed(parents), strict=True):
        if parent[part] == {}:
            del parent[part]
