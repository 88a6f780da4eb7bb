"""Sites of many kinds, and what a job becomes on them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from k8s.objects import manifests
from orchestrator.estimate.auto import with_strategy
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import Rendered, render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
TARGETS = ("job", "pytorchjob", "jobset", "trainjob")
CONTAINERS = {"pytorchjob": "pytorch"}
"""The name of the run's container by target; `node` elsewhere."""
NEUTRAL: dict[str, Any] = {"runs": {"pvc": "runs"}}
PLACEMENT: dict[str, Any] = {
    "node_selector": {"topology.kubernetes.io/zone": "a"},
    "node_affinity": [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5"]},
        {"key": "spot", "operator": "DoesNotExist"},
    ],
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "ml"},
    ],
    "topology_spread": [{"topology_key": "kubernetes.io/hostname", "max_skew": 1}],
    "pack": "topology.kubernetes.io/zone",
    "priority_class": "research",
    "service_account": "trainer",
    "runtime_class": "nvidia",
}
VOLUMES: dict[str, Any] = {
    "data": {"pvc": "data", "mount": "/data", "read_only": True},
    "bucket": {
        "csi": "gcsfuse.csi.storage.gke.io",
        "csi_attributes": {"bucketName": "texts", "mountOptions": "implicit-dirs"},
        "csi_secret": "bucket",
        "mount": "/bucket",
    },
    "token": {"secret": "token", "mount": "/secrets/token", "read_only": True},
    "texts": {"config_map": "texts", "mount": "/texts"},
    "scratch": {"empty_dir": True, "mount": "/scratch"},
}
SITES: dict[str, dict[str, Any]] = {
    "neutral": NEUTRAL,
    "kueue": {
        **NEUTRAL,
        **PLACEMENT,
        "namespace": "team-a",
        "image": "registry.example.org/trainer@sha256:" + "0" * 64,
        "image_pull_policy": "Always",
        "image_pull_secrets": ["registry"],
        "labels": {"team": "ml", "cost-center": "4711"},
        "annotations": {"example.org/contact": "ml@example.org: the on-call's"},
        "volumes": VOLUMES,
        "secret_env": {"HF_TOKEN": {"name": "hub", "key": "token"}},
        "kueue": {
            "queue": "team-a",
            "priority": "high",
            "topology": "required",
            "topology_level": "cloud.provider.com/topology-block",
        },
    },
    "volcano": {
        **NEUTRAL,
        "suspend": True,
        "pod_security": "baseline",
        "run_as_user": None,
        "run_as_group": None,
        "fs_group": None,
        "gpu_resource": "amd.com/gpu",
        "shm_size": "16GiB",
        "launcher_from": "config-map",
        "python": "/opt/venv/bin/python",
        "workdir": "/code",
        "volcano": {"queue": "team-a", "priority_class": "high"},
    },
    "coscheduling": {
        "runs": {"nfs": "files.example.org:/runs"},
        "pod_security": "none",
        "rdma": True,
        "host_network": True,
        "extra_resources": {"rdma/ib": "4"},
        "volumes": {"models": {"host_path": "/mnt/models", "mount": "/models"}},
        "coscheduling": {"schedule_timeout": "5m", "scheduler": "scheduler-plugins"},
    },
}
"""Sections `kubernetes` of cluster profiles, by what is special about them."""

WIDE = """
name: wide-run-of-a-name-as-long-as-jobset-takes-it-48
resources:
  nodes: 4
  gpus_per_node: 8
  cpus_per_rank: 12
  memory: 1500GiB
  gpu_type: NVIDIA-H200
  time_limit: 12h
timeouts: {shutdown: 10m}
attempts: {failures: 5, requeues: 1000, deadline: 14d}
env: {NCCL_DEBUG: INFO, PROMPT: "costs $5 at $(date) {{ now }}"}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 100}
"""
ELASTIC = """
name: elastic
resources: {nodes: {min: 2, max: 4}, gpus_per_node: 1}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 100}
"""
JOBS = {"wide": WIDE, "elastic": ELASTIC}


@functools.cache
def site_objects(text: str, target: str, site: str) -> dict[str, dict[str, Any]]:
    """The objects of a job by file, of which each has one; `site` names one of SITES."""
    files = render_job(text, target, SITES[site]).files
    found = {name: manifests(text) for name, text in files.items() if name.endswith(".yaml")}
    assert {len(documents) for documents in found.values()} == {1}
    return {name: documents[0] for name, documents in found.items()}


def render_job(text: str, target: str, site: dict[str, Any]) -> Rendered:
    """What a job file becomes on `target` (one of TARGETS) with `site` as its `kubernetes`.

    Raises:
        FaultsError, UserError: as the command line would say.
    """
    raw = {"name": "site", "target": target, "runs_root": "/runs", "kubernetes": site}
    profile = ClusterProfile.model_validate(raw)
    job = resolve_job(parse_document(text.encode(), "job.yaml"), profile, [])
    job = with_strategy(job, profile, Path("job.yaml"))
    return render(make_plan(job.spec, profile, job.elements, job.chosen))
