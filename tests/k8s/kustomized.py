"""What kustomize builds, and what is rendered, as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from k8s.kubectl import kubectl


def built(folder: Path) -> dict[str, Any]:
    """The objects that kustomize makes of a folder, by kind."""
    return by_kind(kubectl("kustomize", str(folder)))


def by_kind(*texts: str) -> dict[str, Any]:
    """The objects in the texts by kind, of which a run has one each."""
    trees = [tree for text in texts for tree in yaml.safe_load_all(text)]
    kinds = {tree["kind"]: tree for tree in trees}
    assert len(kinds) == len(trees)
    return kinds
