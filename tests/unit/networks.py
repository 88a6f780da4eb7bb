"""A job of two nodes with GPUs, what is wrong with its network, and its plan."""

from __future__ import annotations

from orchestrator.network_check import Judged, check_network
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.source import parse_document
from orchestrator.spec import ResolvedJob, resolve_job

JOB = """\
name: demo
resources: {nodes: 2, gpus_per_node: 4}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 5}
"""
CPU = "resources.gpus_per_node=0"


def profile(fabric: str | None = None, target: str = "slurm") -> ClusterProfile:
    return ClusterProfile.model_validate({"name": "dev", "target": target, "fabric": fabric})


def resolved(text: str, cluster: ClusterProfile, *sets: str) -> ResolvedJob:
    return resolve_job(parse_document((JOB + text).encode(), "job.yaml"), cluster, sets)


def judged(text: str, *sets: str, fabric: str | None = None, target: str = "slurm") -> Judged:
    cluster = profile(fabric, target)
    return check_network(resolved(text, cluster, *sets), cluster)


def planned(text: str, *sets: str, fabric: str | None = None, target: str = "slurm") -> LaunchPlan:
    cluster = profile(fabric, target)
    return make_plan(resolved(text, cluster, *sets).spec, cluster)
