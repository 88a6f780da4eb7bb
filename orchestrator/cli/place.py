"""Where a job goes, and whether the other commands will find it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.common import Loaded, backend_of
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend


def backend_for(loaded: Loaded) -> Backend:
    """The backend for a job. Raises UserError where the job names another place than the profile:
    the other commands, which read no job file, would not find its run."""
    facts = loaded.profile.kubernetes
    for key in ("context", "namespace"):
        wanted = getattr(loaded.resolved.spec.kubernetes, key)
        if loaded.profile.is_kubernetes and wanted != facts.get(key):
            raise UserError(
                f"kubernetes.{key}: the job wants {wanted}, and the profile "
                f"{loaded.profile.name}, by which status, logs and cancel look for the run, has "
                f"{facts.get(key)}. Write it into the profile ({loaded.profile.file})."
            )
    return backend_of(loaded.profile)
