"""A run that Kueue has admitted: it must be told of a cancel too, or it resumes the run."""

from __future__ import annotations

from typing import Any

from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_errors import MissingKind
from orchestrator.backends.kubernetes_kinds import (
    NEW_WORKLOAD,
    WORKLOAD,
    Kind,
    Object,
    metadata,
)
from orchestrator.errors import BackendError

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def workload_of(cluster: Cluster, live: Object) -> tuple[Kind, dict[str, Any]] | None:
    """The Workload that Kueue has made for an object, and its kind; None without one."""
    if QUEUE_LABEL not in metadata(live, "labels"):
        return None
    uid = live["metadata"]["uid"]
    for kind in (NEW_WORKLOAD, WORKLOAD):
        try:
            found = cluster.objects(kind)
        except MissingKind:
            continue
        for workload in found:
            owners = workload["metadata"].get("ownerReferences") or ()
            if any(owner.get("uid") == uid for owner in owners):
                return kind, workload
        return None
    return None


def deactivate(cluster: Cluster, live: Object) -> None:
    """Have Kueue evict the run and not admit it again. Without a permission to do so the run's
    own suspension stands alone, and Kueue ends it."""
    found = workload_of(cluster, live)
    if found is None:
        return
    kind, workload = found
    name = workload["metadata"]["name"]
    try:
        cluster.patch(kind, name, {"spec": {"active": False}})
    except BackendError as error:
        raise BackendError(
            f"{error} Kueue would start {live['metadata']['name']} again: have its Workload {name} "
            "set to spec.active: false."
        ) from None
