"""Objects as controllers and kubelets write them: training-operator 1.9.4, JobSet 0.12, Trainer
2.3, Kueue 0.14 and Kubernetes 1.36. What does not count is left out."""

from __future__ import annotations

from typing import Any

from k8s.discovery import Json

T0, T1, T2 = "2026-11-30T10:00:00Z", "2026-11-30T10:05:00Z", "2026-11-30T10:10:00Z"
CANCELLED = {"orchestrate.dev/cancelled": "true"}
OURS = {"app.kubernetes.io/managed-by": "orchestrate", "orchestrate.dev/run": "demo"}
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
SPECS: dict[str, Json] = {
    "job": {"completions": 2, "parallelism": 2, "completionMode": "Indexed"},
    "jobset": {
        "replicatedJobs": [
            {"name": "node", "replicas": 1, "template": {"spec": {"completions": 2}}}
        ]
    },
    "trainjob": {"runtimeRef": {"name": "demo", "kind": "TrainingRuntime"}},
    "pytorchjob": {
        "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}},
        "runPolicy": {},
    },
}
KINDS = {"job": ("batch/v1", "Job"), "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
         "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
         "pytorchjob": ("kubeflow.org/v1", "PyTorchJob")}  # fmt: skip
CONTAINERS = {"pytorchjob": "pytorch"}


def condition(type_: str, reason: str = "", message: str = "", status: str = "True") -> Json:
    return {"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": T1}  # fmt: skip


def live(
    target: str,
    *conditions: Json,
    suspend: bool = False,
    annotations: Json | None = None,
    labels: Json | None = None,
    spec: Json | None = None,
    **status: Any,
) -> Json:
    """The object of the run `demo`."""
    api_version, kind = KINDS[target]
    parts: Json = {**SPECS[target], **(spec or {})}
    if target == "pytorchjob":
        parts["runPolicy"] = {"suspend": suspend}
    elif suspend:
        parts["suspend"] = True
    metadata = {"name": "demo", "creationTimestamp": T0, "uid": "u",
                "labels": {**OURS, **(labels or {})}, "annotations": annotations or {}}  # fmt: skip
    told = {**({"conditions": list(conditions)} if conditions else {}), **status}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": parts,
            "status": told}  # fmt: skip


def pod(
    target: str,
    node: int,
    state: Json | None = None,
    *,
    phase: str = "Running",
    created: str = T0,
    name: str = "",
    conditions: tuple[Json, ...] = (),
    elastic: bool = False,
    host: str = "gpu-7",
    words: tuple[str, ...] = (),
    **status: Any,
) -> Json:
    """A pod of the run; `state` is that of the launcher's container, `words` are more of its
    arguments."""
    container = CONTAINERS.get(target, "node")
    metadata: Json = {"name": name or f"demo-{node}", "creationTimestamp": created,
                      "labels": dict(OURS), "annotations": {}}  # fmt: skip
    args = ["--run-dir", "/runs/demo", *words]
    if target == "pytorchjob":
        is_master = node == 0 and not elastic
        index = node if elastic or is_master else node - 1
        metadata["labels"] |= {
            "training.kubeflow.org/replica-type": "master" if is_master else "worker",
            "training.kubeflow.org/replica-index": str(index),
        }
        args += [] if elastic or is_master else ["--node-rank-offset", "1"]
    else:
        metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(node)}
    spec: Json = {"containers": [{"name": container, "args": args}], "restartPolicy": "Never"}
    spec |= {"nodeName": host} if host else {}
    told: Json = {"phase": phase, "conditions": list(conditions), **status}
    if state is not None:
        told["containerStatuses"] = [{"name": container, "state": state, "restartCount": 0}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": told}


RUNNING: Json = {"running": {"startedAt": T0}}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def ended(code: int, reason: str = "", at: str = T1) -> Json:
    told = reason or ("Completed" if code == 0 else "Error")
    return {"terminated": {"exitCode": code, "reason": told, "startedAt": T0, "finishedAt": at}}


def running(target: str, node: int, **more: Any) -> Json:
    return pod(target, node, RUNNING, **more)


def finished(target: str, node: int, code: int, reason: str = "", **more: Any) -> Json:
    at = more.pop("at", T1)
    phase = "Failed" if code else "Succeeded"
    return pod(target, node, ended(code, reason, at), phase=phase, **more)


def unscheduled(target: str, node: int, message: str, reason: str = "Unschedulable") -> Json:
    not_yet = condition("PodScheduled", reason, message, "False")
    return pod(target, node, phase="Pending", conditions=(not_yet,), host="")


def event(name: str, reason: str, message: str, at: str = T1, type_: str = "Warning") -> Json:
    return {"apiVersion": "v1", "kind": "Event",
            "metadata": {"name": f"{name}.{reason.lower()}", "creationTimestamp": at},
            "involvedObject": {"name": name}, "type": type_, "reason": reason, "message": message,
            "lastTimestamp": at}  # fmt: skip


def workload(*conditions: Json, active: bool = True, **status: Any) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
            "metadata": {"name": "job-demo-1a2b3"},
            "spec": {"active": active, "queueName": "gpus"},
            "status": {"conditions": list(conditions), **status}}  # fmt: skip
