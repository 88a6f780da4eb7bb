"""Ways through a manifest: its paths, its pod templates, its quantities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import yaml

SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** n for n, suffix in enumerate("KMGTPE", 1)},
}
"""Kubernetes API reference, Quantity: decimal and binary suffixes."""


class PodTemplate(NamedTuple):
    """A template of pods within an object."""

    path: str
    metadata: dict[str, Any]
    spec: dict[str, Any]


def manifests(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML text.

    Raises:
        yaml.YAMLError: a syntax error, or a key that is there twice (kubectl refuses it too).
    """
    documents = list(yaml.load_all(text, Loader=_Strict))
    return [document for document in documents if document is not None]


def children(value: Any, where: str = "") -> Iterator[tuple[str, Any, str]]:
    """Each key (or number) of a map or list, what is there, and its path."""
    if isinstance(value, dict):
        yield from ((str(key), child, f"{where}.{key}".lstrip(".")) for key, child in value.items())
    elif isinstance(value, list):
        yield from ((str(n), child, f"{where}[{n}]") for n, child in enumerate(value))


def walk(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Each path below `value`, with what is there."""
    for _, child, path in children(value, where):
        yield path, child
        yield from walk(child, path)


def pod_templates(manifest: dict[str, Any]) -> list[PodTemplate]:
    """Each template with containers, in the order of the text."""
    found = []
    for path, value in walk(manifest):
        if not isinstance(value, dict) or path.rpartition(".")[2] != "template":
            continue
        spec = value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            found.append(PodTemplate(path, value.get("metadata", {}), spec))
    return found


def jobs(manifest: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The path and contents of each batch/v1 JobSpec, the object's own or one inside it."""
    if manifest["kind"] == "Job":
        return [("spec", manifest["spec"])]
    return [
        (f"{path}.spec", value["spec"])
        for path, value in walk(manifest)
        if path.rpartition(".")[2] == "template"
        and "containers" in value.get("spec", {}).get("template", {}).get("spec", {})
    ]


def quantity(given: object) -> Decimal | None:
    """The number that a Kubernetes quantity stands for; None where it is none."""
    match = re.fullmatch(r"([+-]?\d+(?:\.\d*)?)([a-zA-Z]*|[eE][+-]?\d+)", str(given))
    if not match or isinstance(given, bool):
        return None
    if re.fullmatch(r"[eE][+-]?\d+", match[2]):
        return Decimal(match[1] + match[2])
    return Decimal(match[1]) * SUFFIXES[match[2]] if match[2] in SUFFIXES else None


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{node.start_mark}: {sorted(twice)} twice")
        return super().construct_mapping(node, deep)
