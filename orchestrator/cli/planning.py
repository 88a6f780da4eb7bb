"""The plan of a job that is submitted, kept in its run folder for a later report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.contract import PLAN_FILE
from orchestrator.errors import OrchestrateError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle
    from orchestrator.cli.common import Loaded


def keep_plan(backend: Backend, handle: Handle, loaded: Loaded, job_file: Path) -> None:
    """Write the plan into the run folder, where that is on this machine.

    A run without it is as good a run: what hinders it, such as a model of the user's own that was
    never inspected, is no reason to complain.
    """
    if loaded.profile.ssh is not None or loaded.profile.is_kubernetes:
        return
    try:
        text = f"{json.dumps(plan_of(loaded, job_file), indent=1, sort_keys=True)}\n"
        backend.run_store(handle).write(PLAN_FILE, text.encode())
    except (OrchestrateError, OSError):
        return


def plan_of(loaded: Loaded, job_file: Path) -> dict[str, Any]:
    """Return the plan of a job, of a sweep that of the job without it. Raises UserError where the
    model is not known."""
    from orchestrator.estimate.answers import plan_answer
    from orchestrator.estimate.auto import question_of

    resolved = loaded.resolved
    question = question_of(resolved.spec, loaded.profile, job_file, frozenset())
    answer = plan_answer(question.estimate(question.setting), question.hardware)
    return {**answer, "chosen": list(resolved.chosen)}
