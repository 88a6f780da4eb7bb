"""What kustomize builds, and what is rendered, as objects."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from k8s.kubectl import kubectl
from orchestrator.source import parse_document

Tree = dict[str, Any]


def documents(folder: Path) -> list[Tree]:
    """The objects that kustomize makes of a folder, read by rules under which a plain = or << is a
    text, as kustomize writes it."""
    texts = kubectl("kustomize", str(folder)).split("\n---\n")
    return [parse_document(text.encode(), str(folder)).data for text in texts]


def built(folder: Path) -> dict[str, Tree]:
    """The objects that kustomize makes of a folder, by kind."""
    return by_kind(documents(folder))


def rendered_objects(*texts: str) -> dict[str, Tree]:
    """The objects in the texts, one each, by kind."""
    return by_kind(map(yaml.safe_load, texts))


def by_kind(trees: Iterable[Tree]) -> dict[str, Tree]:
    """Objects by kind, of which a run has one each."""
    found = list(trees)
    kinds = {tree["kind"]: tree for tree in found}
    assert len(kinds) == len(found)
    return kinds
