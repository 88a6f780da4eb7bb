"""The Kubernetes objects of a job, as an API server reads them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

KINDS = {"job": "Job", "jobset": "JobSet", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}
TARGETS = sorted(KINDS)
JOB: dict[str, Any] = {
    "name": "run",
    "resources": {"nodes": 3, "ranks_per_node": 2},
    "train": {
        "model": {"preset": "nano"},
        "data": {"synthetic": {"samples": 96}},
        "batch": {"micro": 2},
        "steps": 5,
    },
}
Object = dict[str, Any]


def job(**parts: Any) -> dict[str, Any]:
    """The job with keys of its parts replaced, such as resources={"nodes": 1}."""
    changed = copy.deepcopy(JOB)
    for name, part in parts.items():
        changed[name] = {**changed.get(name, {}), **part} if isinstance(part, dict) else part
    return changed


ELASTIC = job(resources={"nodes": {"min": 1, "max": 3}})


# Every limit that a job can have.
LIMITED = job(
    resources={"time_limit": "8h"},
    attempts={"failures": 4, "requeues": 7, "deadline": "2d"},
    timeouts={"shutdown": "100s"},
)


def plan_of(target: str, given: Mapping[str, Any] = JOB, **kubernetes: Any) -> LaunchPlan:
    """The plan of a job on a cluster with these facts."""
    facts = {"runs": {"pvc": "runs"}, **kubernetes}
    profile = ClusterProfile.model_validate(
        {"name": "c", "target": target, "runs_root": "/runs", "kubernetes": facts}
    )
    document = parse_document(json.dumps(given).encode(), "job.yaml")
    return make_plan(resolve_job(document, profile).spec, profile)


def objects_of(plan: LaunchPlan) -> dict[str, Object]:
    """The objects of a plan by kind."""
    files = render(plan).files
    found = [yaml.safe_load(text) for name, text in files.items() if name.endswith(".yaml")]
    return {value["kind"]: value for value in found}


def objects(target: str, given: Mapping[str, Any] = JOB, **kubernetes: Any) -> dict[str, Object]:
    """The objects of a job by kind."""
    return objects_of(plan_of(target, given, **kubernetes))


def main(target: str, given: Mapping[str, Any] = JOB, **kubernetes: Any) -> Object:
    """The object that starts the job."""
    return objects(target, given, **kubernetes)[KINDS[target]]


def job_specs(found: Mapping[str, Object]) -> list[Object]:
    """The specs of all Jobs among objects, as they are or in a JobSet or runtime."""
    if "Job" in found:
        return [found["Job"]["spec"]]
    if "TrainingRuntime" in found:
        spec = found["TrainingRuntime"]["spec"]["template"]["spec"]
    else:
        spec = found.get("JobSet", {}).get("spec", {"replicatedJobs": []})
    return [replicated["template"]["spec"] for replicated in spec["replicatedJobs"]]


def templates(found: Mapping[str, Object]) -> list[Object]:
    """The pod templates among objects, that of node 0 first."""
    if "PyTorchJob" in found:
        specs = found["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
        return [specs[role]["template"] for role in ("Master", "Worker") if role in specs]
    return [spec["template"] for spec in job_specs(found)]


def pods(target: str, given: Mapping[str, Any] = JOB, **kubernetes: Any) -> list[Object]:
    """The pod templates of a job."""
    return templates(objects(target, given, **kubernetes))


def container(template: Object) -> Object:
    """The only container of a pod."""
    (found,) = template["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def option(template: Object, name: str) -> str | None:
    """The value of an argument of node.py; None if it is not given."""
    args: list[str] = container(template)["args"]
    args = args[: args.index("--")]
    return args[args.index(name) + 1] if name in args else None
