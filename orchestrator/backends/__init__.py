"""Backends by name. Each is imported when it is asked for, so that a library which only one of
them needs, and which is missing, breaks no other."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend

# MODULE:OBJECT, as an entry point has it.
BACKENDS = {
    "local": "orchestrator.backends.local:BACKEND",
    "slurm": "orchestrator.backends.slurm:BACKEND",
    "pytorchjob": "orchestrator.backends.kubernetes:PYTORCHJOB",
    "trainjob": "orchestrator.backends.kubernetes:TRAINJOB",
    "jobset": "orchestrator.backends.kubernetes:JOBSET",
    "job": "orchestrator.backends.kubernetes:JOB",
}
ENTRY_POINT_GROUP = "orchestrate.backends"


def load_backend(name: str, ssh: str | None = None) -> Backend:
    """Return the backend `name`: one of this package, or of a plug-in's entry point.

    Args:
        name: as a profile's `target` has it.
        ssh: login node from which it works, as the user's ssh knows it; this machine without.

    Raises BackendError if there is none, or if a library that it needs is missing, and UserError
    if it cannot work by ssh.
    """
    backend = _load(name)
    return backend if ssh is None else backend.at(ssh)


def _load(name: str) -> Backend:
    try:
        if name in BACKENDS:
            module, _, attribute = BACKENDS[name].partition(":")
            return cast("Backend", getattr(importlib.import_module(module), attribute))
        for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=name):
            return cast("Backend", entry_point.load())
    except ImportError as error:
        raise BackendError(
            f"backend {name}: cannot be loaded: {error}. Install what it needs."
        ) from error
    known = sorted({*BACKENDS, *(e.name for e in entry_points(group=ENTRY_POINT_GROUP))})
    raise BackendError(f"backend {name}: there is none of this name. Known: {', '.join(known)}.")
