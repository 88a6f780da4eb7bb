"""Who admits a run's pods, and all at once: Kueue, Volcano, scheduler-plugins' coscheduling.

The spec allows one of them at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.plan import LaunchPlan

# kueue.sigs.k8s.io documentation, "Labels and Annotations".
KUEUE = "kueue.x-k8s.io"
# volcano.sh apis, pkg/apis/scheduling/v1beta1/labels.go: group of a pod, queue of a pod group.
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
# scheduler-plugins, apis/scheduling/v1alpha1/types.go.
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"


class Gang(NamedTuple):
    """A pod group: pods that are scheduled together, or not at all.

    Args:
        api_version: of the PodGroup.
        min_member: how many pods must find a place.
        scheduler: schedulerName of the pods; None where the operator sets it.
        queue: the scheduler's queue.
        priority_class: of the group.
        timeout_s: how long the group waits for its last pod.
    """

    api_version: str
    min_member: int
    scheduler: str | None
    queue: str | None = None
    priority_class: str | None = None
    timeout_s: int | None = None


def gang(plan: LaunchPlan) -> Gang | None:
    """Return the pod group of the run, None where the pods are scheduled one by one."""
    volcano, coscheduling = plan.kubernetes.volcano, plan.kubernetes.coscheduling
    fewest = plan.node_sizes[0]
    if volcano is not None:
        version = "scheduling.volcano.sh/v1beta1"
        return Gang(version, fewest, "volcano", volcano.queue, volcano.priority_class)
    if coscheduling is not None:
        return Gang(
            "scheduling.x-k8s.io/v1alpha1",
            *(fewest, coscheduling.scheduler),
            timeout_s=coscheduling.schedule_timeout,
        )
    return None


def needs_pod_group(plan: LaunchPlan) -> bool:
    """Whether the pod group is an object of ours: Job and JobSet have no field for it."""
    return plan.target in ("job", "jobset") and gang(plan) is not None


def object_labels(plan: LaunchPlan) -> dict[str, str]:
    """Return the labels by which Kueue knows the run."""
    kueue = plan.kubernetes.kueue
    if kueue is None:
        return {}
    labels = {"queue-name": kueue.queue, "priority-class": kueue.priority}
    return {f"{KUEUE}/{key}": value for key, value in labels.items() if value is not None}


def pod_labels(plan: LaunchPlan) -> dict[str, str]:
    """Return the label by which coscheduling knows the group of a pod."""
    if plan.kubernetes.coscheduling is None:
        return {}
    return {COSCHEDULING_GROUP: plan.name}


def pod_annotations(plan: LaunchPlan) -> dict[str, str]:
    """Return what Kueue's topology and Volcano read from a pod."""
    kueue = plan.kubernetes.kueue
    annotations = {}
    if kueue is not None and kueue.topology is not None:
        # "unconstrained" has no level.
        value = "true" if kueue.topology == "unconstrained" else kueue.topology_level or ""
        annotations[f"{KUEUE}/podset-{kueue.topology}-topology"] = value
    if plan.kubernetes.volcano is not None:
        annotations[VOLCANO_GROUP] = plan.name
    return annotations


def group_annotations(plan: LaunchPlan) -> dict[str, str]:
    """Return what Kubeflow Trainer reads from a runtime's template for the group that it makes."""
    volcano = plan.kubernetes.volcano
    if volcano is None or volcano.queue is None:
        return {}
    return {VOLCANO_QUEUE: volcano.queue}
