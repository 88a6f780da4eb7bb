"""The job that the pods run, its rendered objects by kind, and the same on the local backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from orchestrator.backends import local
from orchestrator.backends.base import State
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from running import PROGRAMS, wait_until
from slurm.training import Act, start

KINDS = ("pytorchjob", "trainjob", "jobset", "job")
STEPS = 12
JOB = f"""
name: pods
resources: {{nodes: 2}}
train:
  model: {{factory: "acting:build", context: 32, args: {{width: 32, context: 32}}}}
  data: {{python_docs: true}}
  batch: {{micro: 2}}
  schedule: {{warmup_steps: 2}}
  evaluation: {{batches: 1}}
  logging: {{every: 2, tensorboard: false}}
  steps: {STEPS}
checkpoint: {{every: 4}}
timeouts: {{step: 5m, shutdown: 60s}}
attempts: {{failures: 2, requeues: 2}}
"""
# Two claims: the runs, and the folder that holds the job's own model.
SITE: dict[str, Any] = {
    "runs": {"pvc": "runs"},
    "volumes": {"code": {"pvc": "code", "mount": "/workspace"}},
}
LOCAL_S = 180.0


def objects_of(target: str, text: str = JOB, **site: object) -> dict[str, dict[str, Any]]:
    """The rendered objects of a job by kind.

    Args:
        target: pytorchjob, trainjob, jobset or job.
        site: more keys of the profile's `kubernetes`.
    """
    profile = ClusterProfile(name="test", target=target, runs_root="/runs", kubernetes=SITE | site)  # type: ignore[arg-type]
    document = parse_document(text.encode(), "job.yaml")
    files = render(make_plan(resolve_job(document, profile, []).spec, profile)).files
    manifests = [yaml.safe_load(content) for name, content in files.items() if "yaml" in name]
    return {manifest["kind"]: manifest for manifest in manifests}


def workspace(folder: Path, acts: list[Act]) -> Path:
    """Fill the folder that holds the job's model, and what is to happen in it."""
    folder.mkdir()
    shutil.copy(PROGRAMS / "acting.py", folder)
    (folder / "act.json").write_text(json.dumps(acts))
    return folder


def run_locally(folder: Path) -> Path:
    """Run the job on the local backend, undisturbed; returns the run folder."""
    handle = start(local.BACKEND, folder, JOB, [])
    wait_until(lambda: _state(handle).is_final, "the local run", LOCAL_S)
    assert _state(handle) is State.DONE
    return handle.run_dir


def _state(handle: Any) -> State:
    return local.BACKEND.status([handle])[0].state
