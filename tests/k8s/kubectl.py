"""A real kubectl, which reads YAML and builds kustomizations without a cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 60.0


def program() -> Path:
    """The program; the test is skipped without it."""
    path = Path(os.environ.get("ORCHESTRATE_KUBECTL", ROOT / ".tools" / "kubectl"))
    if not path.exists():
        pytest.skip(f"no {path}: `make kubectl` gets one, or name one by ORCHESTRATE_KUBECTL")
    return path


def kubectl(*words: str, given: str | None = None) -> str:
    """The standard output of kubectl with these arguments; the test is skipped without kubectl.

    Args:
        given: its standard input.

    Raises:
        AssertionError: it failed, with its words.
    """
    done = subprocess.run(
        [program(), *words],
        capture_output=True,
        check=False,
        env={"KUBECONFIG": os.devnull, "PATH": os.environ["PATH"]},
        input=given,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
