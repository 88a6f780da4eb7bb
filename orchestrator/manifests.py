"""What the Kubernetes templates need beyond the plan: arguments, labels, resources, volumes.

Pure, and without YAML: render.py and templates/k8s/ write it.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import UserError
from orchestrator.node_command import INDEX, PORT_NAMES, port, process, roles
from orchestrator.plan import LaunchPlan
from orchestrator.queues import (
    Gang,
    gang,
    group_annotations,
    object_labels,
    pod_annotations,
    pod_labels,
)
from orchestrator.sidecars import sidecars
from orchestrator.volumes import quantity, volumes

Pairs = list[tuple[str, Any]]

# Kubernetes API reference, ConfigMap: "data ... cannot exceed 1MiB", keys and all.
CONFIG_LIMIT_BYTES = 2**20
CONTAINERS = {"pytorchjob": "pytorch"}
# What a node needs after timeouts.shutdown: kills, the agreement on the end, the rest of the logs.
AFTER_SHUTDOWN_S = 60
MAX_INT32 = 2**31 - 1
RUN_LABEL = "orchestrate.dev/run"
HASH_ANNOTATION = "orchestrate.dev/content-hash"
CHOSEN_ANNOTATION = "orchestrate.dev/strategy"  # what strategy: auto is, and why
NO_ISTIO = {"sidecar.istio.io/inject": "false"}  # a sidecar would outlive the run


# Kubeflow Trainer, manifests of its runtimes: for its command line and SDK.
RUNTIME_LABELS = {"trainer.kubeflow.org/framework": "torch"}
# Argo CD documentation, "Sync Phases and Waves": a TrainJob is refused while it has no runtime.
RUNTIME_FIRST = {"argocd.argoproj.io/sync-wave": "-1"}


def manifest_values(plan: LaunchPlan, config: dict[str, str], content_hash: str) -> dict[str, Any]:
    """Return the variables of the templates in templates/k8s/.

    Args:
        config: the files that the pods read, by name.
        content_hash: of everything rendered; empty while that is not known.

    Raises:
        UserError: the files do not fit into a ConfigMap; a side-car without an image.
    """
    _check_size(config)
    return {
        "config": config,
        "container": CONTAINERS.get(plan.target, "node"),
        "port": port(plan),
        "port_name": PORT_NAMES.get(plan.target, "orchestrate"),
        "rank": INDEX,
        "roles": roles(plan),
        "gang": gang(plan),
        **_metadata(plan, content_hash),
        **_limits(plan),
        **process(plan, content_hash),
        **_placement(plan),
        **_security(plan),
        "sidecars": sidecars(plan),
        "volumes": volumes(plan),
    }


def _check_size(config: dict[str, str]) -> None:
    size = sum(len(name) + len(text.encode()) for name, text in config.items())
    if size > CONFIG_LIMIT_BYTES:
        largest = max(config, key=lambda name: len(config[name]))
        raise UserError(
            f"the configuration of the run has {size} bytes, and a ConfigMap takes "
            f"{CONFIG_LIMIT_BYTES}; the largest part is {largest}. Keep long lists and texts of "
            "the job file in a file on a volume of the pods, and name that file."
        )


def _metadata(plan: LaunchPlan, content_hash: str) -> dict[str, Pairs]:
    """Labels and annotations of the objects and of the pods."""
    kubernetes = plan.kubernetes
    labels = {
        **kubernetes.labels,
        "app.kubernetes.io/managed-by": "orchestrate",
        "app.kubernetes.io/name": "orchestrate",
        RUN_LABEL: plan.name,
    }
    annotations = {**kubernetes.annotations, HASH_ANNOTATION: content_hash}
    if plan.chosen:
        # On the pods too: kustomize gives them what all objects have in common.
        annotations[CHOSEN_ANNOTATION] = " ".join(plan.chosen)
    found = {
        "labels": labels,
        "object_labels": {**labels, **object_labels(plan)},
        "object_annotations": annotations,
        "pod_labels": {**labels, **NO_ISTIO, **pod_labels(plan)},
        "pod_annotations": {**annotations, **NO_ISTIO, **pod_annotations(plan)},
        "runtime_labels": {**labels, **RUNTIME_LABELS},
        "runtime_annotations": {**annotations, **RUNTIME_FIRST},
        "group_annotations": group_annotations(plan),
    }
    return {name: sorted(pairs.items()) for name, pairs in found.items()}


def _limits(plan: LaunchPlan) -> dict[str, Any]:
    """Times and restarts."""
    grace_s = plan.shutdown_timeout_s + AFTER_SHUTDOWN_S
    limit_s, deadline_s = plan.time_limit_s, plan.deadline_s
    # An attempt may be preceded by as many starts without one as there may be failures.
    starts = (plan.failures + plan.requeues + 1) * (plan.failures + 1)
    return {
        "grace_s": grace_s,
        # Kubernetes counts from before the image is there, the node from its own start.
        "pod_deadline_s": limit_s and limit_s + plan.start_timeout_s + AFTER_SHUTDOWN_S,
        "object_deadline_s": limit_s and deadline_s and deadline_s + limit_s + grace_s,
        "backoff_limit": min(starts * plan.num_nodes, MAX_INT32),
        "max_restarts": min(starts - 1, MAX_INT32),
    }


def _placement(plan: LaunchPlan) -> dict[str, Any]:
    """Where the pods run and what they take there."""
    kubernetes = plan.kubernetes
    selector = dict(kubernetes.node_selector)
    if plan.gpu_type is not None:
        selector[kubernetes.gpu_type_label] = plan.gpu_type
    # Extended resources are not shared: what is asked for is also the limit.
    limits = dict(kubernetes.extra_resources)
    if plan.gpus_per_node:
        limits[kubernetes.gpu_resource] = str(plan.gpus_per_node)
    if plan.memory_bytes is not None:
        limits["memory"] = quantity(plan.memory_bytes)
    requests = {**limits, "cpu": str(plan.cpus_per_rank * plan.ranks_per_node)}
    return {
        "node_selector": sorted(selector.items()),
        "requests": sorted(requests.items()),
        "limits": sorted(limits.items()),
        **_scheduling(plan, gang(plan)),
    }


def _scheduling(plan: LaunchPlan, group: Gang | None) -> dict[str, str | None]:
    """Who schedules the pods, and how much they count there."""
    priority_class = plan.kubernetes.priority_class
    if group is not None and plan.target == "trainjob":
        # Its group gets the priority of the pods.
        priority_class = priority_class or group.priority_class
    return {
        "scheduler": group.scheduler if group is not None else None,
        "priority_class": priority_class,
    }


def _security(plan: LaunchPlan) -> dict[str, Pairs]:
    """Security contexts of the pod and of its container, for the level of Pod Security."""
    kubernetes = plan.kubernetes
    restricted = kubernetes.pod_security == "restricted"
    pod: dict[str, Any] = {
        "runAsNonRoot": restricted or None,
        "runAsUser": kubernetes.run_as_user,
        "runAsGroup": kubernetes.run_as_group,
        "fsGroup": kubernetes.fs_group,
        # Else each start walks through all files of the volumes.
        "fsGroupChangePolicy": None if kubernetes.fs_group is None else "OnRootMismatch",
    }
    capabilities: dict[str, Any] = {"drop": ["ALL"]} if restricted else {}
    if kubernetes.rdma:
        capabilities["add"] = ["IPC_LOCK"]  # memory that a network card reads must stay in place
    container: dict[str, Any] = {"capabilities": capabilities or None}
    if kubernetes.pod_security != "none":
        pod["seccompProfile"] = {"type": "RuntimeDefault"}
        container["allowPrivilegeEscalation"] = False
        container["readOnlyRootFilesystem"] = restricted or None
    return {"pod_security": _given(pod), "container_security": _given(container)}


def _given(values: dict[str, Any]) -> Pairs:
    return [(key, value) for key, value in values.items() if value is not None]
