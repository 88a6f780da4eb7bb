"""kubectl, for the tests: the one that `make unit` puts beside Python, or the PATH's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


def kubectl() -> str:
    """The program. Skips the test where there is none."""
    beside = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl here: python tests/tools/get_kubectl.py puts one beside python")
    return found


def built(folder: Path) -> dict[str, Any]:
    """The objects that `kubectl kustomize` makes of a folder, by kind."""
    done = subprocess.run(
        [kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return by_kind(done.stdout)


def by_kind(*texts: str) -> dict[str, Any]:
    """The objects in the texts by kind, of which a run has one each."""
    trees = [tree for text in texts for tree in yaml.safe_load_all(text)]
    kinds = {tree["kind"]: tree for tree in trees}
    assert len(kinds) == len(trees)
    return kinds
