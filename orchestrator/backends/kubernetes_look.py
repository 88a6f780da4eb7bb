"""What a cluster says of many runs, by as few requests as it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.backends.base import Status
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import (
    EVENT,
    MANAGED_BY,
    MANAGER,
    POD,
    RUN_LABEL,
    Object,
    Target,
    metadata,
)
from orchestrator.backends.kubernetes_queues import is_queued, workload_of, workloads
from orchestrator.backends.kubernetes_status import Seen, status_of, unanswered
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError

# Of the log of node 0's pod: its last lines have the newest step and how the attempt ended.
LOG_LINES, LOG_BYTES, LOG_TIMEOUT_S = 200, 65536, 5.0
LOGS_LIMIT = 20  # of more runs at once no log is read, and so no step is known
FEW = 3  # so many runs are asked for one by one


def read_statuses(cluster: Cluster, target: Target, runs: Sequence[str]) -> list[Status]:
    """One status for each run; UNKNOWN for all where the API server gives no answer."""
    try:
        return [status_of(seen) for seen in _look(cluster, target, runs)]
    except NoAnswer as error:
        return [unanswered(run, str(error)) for run in runs]


def _look(cluster: Cluster, target: Target, runs: Sequence[str]) -> list[Seen]:
    lives, pods = _lives(cluster, target, runs), _pods(cluster, runs)
    seen = [Seen(target, run, lives.get(run), pods[run]) for run in runs]
    going = [one for one in seen if not _is_settled(one)]
    events = _optional(lambda: cluster.objects(EVENT, fields="type=Warning")) if going else []
    queued = any(one.live and is_queued(one.live) for one in going)
    waiting = _optional(lambda: workloads(cluster)) if queued else []
    return [
        replace(
            one,
            events=events,
            workload=workload_of(waiting, one.live) if one.live else None,
            log=_end_of_log(cluster, one) if len(runs) <= LOGS_LIMIT else b"",
        )
        for one in seen
    ]


def _is_settled(seen: Seen) -> bool:
    """Whether events could tell nothing more."""
    return seen.condition(seen.target.done) is not None or seen.live is None


def _lives(cluster: Cluster, target: Target, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The objects of runs, by name."""
    if len(runs) <= FEW:
        found = [cluster.find(target.kind, run) for run in runs]
        return {live["metadata"]["name"]: live for live in found if live is not None}
    ours = cluster.objects(target.kind, f"{MANAGED_BY}={MANAGER}")
    return {live["metadata"]["name"]: live for live in ours}


def _pods(cluster: Cluster, runs: Sequence[str]) -> dict[str, list[Object]]:
    """The pods of runs, by the run's name."""
    one_by_one = f"{RUN_LABEL} in ({','.join(runs)})"
    labels = one_by_one if len(runs) <= FEW else f"{MANAGED_BY}={MANAGER}"
    found: dict[str, list[Object]] = defaultdict(list)
    for pod in cluster.objects(POD, labels) if runs else ():
        found[metadata(pod, "labels").get(RUN_LABEL, "")].append(pod)
    return found


def _optional(look: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Objects that tell more; none where they may not be seen."""
    try:
        return look()
    except NoAnswer:
        raise
    except BackendError:  # no permission: the state is told without
        return []


def _end_of_log(cluster: Cluster, seen: Seen) -> bytes:
    """The end of what node 0 has printed; empty where that cannot be read (any more)."""
    head = seen.nodes.get(0)
    if head is None:
        return b""
    path = f"{POD.path(cluster.namespace, head.name)}/log"
    query = [("container", seen.target.container), ("tailLines", str(LOG_LINES)),
             ("limitBytes", str(LOG_BYTES))]  # fmt: skip
    asked = cluster.asked("get", POD, head.name)
    try:  # a node that is away makes the server wait, and fail
        return b"\n".join(cluster.lines(asked, path, query, LOG_TIMEOUT_S, is_once=True))
    except BackendError:  # it has not started, its node is away, or there is no permission
        return b""
