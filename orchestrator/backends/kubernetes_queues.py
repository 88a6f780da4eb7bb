"""A run that Kueue has admitted: it must be told of a cancel too, or it resumes the run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from orchestrator.backends.kubernetes_client import Cluster, kind_of
from orchestrator.backends.kubernetes_errors import MissingKind
from orchestrator.backends.kubernetes_kinds import (
    NEW_WORKLOAD,
    WORKLOAD,
    Object,
    is_owned,
    metadata,
    uid_of,
)
from orchestrator.errors import BackendError

WORKLOAD_S = 10.0  # within which Kueue makes the Workload of a new object
POLL_S = 0.5
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Kueue documentation, "Labels and Annotations"


def is_queued(live: Object) -> bool:
    """Whether Kueue decides when an object may run."""
    return QUEUE_LABEL in metadata(live, "labels")


def workloads(cluster: Cluster) -> list[dict[str, Any]]:
    """What Kueue has made for the objects in the namespace; none without Kueue."""
    for kind in (NEW_WORKLOAD, WORKLOAD):
        try:
            found = cluster.objects(kind)
        except MissingKind:
            continue
        # The items of a list have no kind of their own.
        return [{**one, "apiVersion": kind.api_version, "kind": kind.name} for one in found]
    return []


def workload_of(found: Sequence[dict[str, Any]], live: Object) -> dict[str, Any] | None:
    """The one of the Workloads that stands for an object."""
    return next((one for one in found if is_owned(one, uid_of(live))), None)


def _awaited(cluster: Cluster, live: Object) -> dict[str, Any] | None:
    """The Workload of an object; it may be made only now. None where nobody makes one."""
    deadline = time.monotonic() + WORKLOAD_S
    while True:
        found = workload_of(workloads(cluster), live)
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(POLL_S)


def deactivate(cluster: Cluster, live: Object) -> None:
    """Have Kueue, if it has admitted the run, evict it and not admit it again.

    Raises BackendError where that is refused: Kueue would then start the run again.
    """
    workload = _awaited(cluster, live) if is_queued(live) else None
    if workload is None:
        return
    name = workload["metadata"]["name"]
    try:
        cluster.patch(kind_of(workload), name, {"spec": {"active": False}})
    except BackendError as error:
        raise BackendError(
            f"{error} Kueue would start {live['metadata']['name']} again: have somebody set "
            f"spec.active of its Workload {name} to false."
        ) from None
