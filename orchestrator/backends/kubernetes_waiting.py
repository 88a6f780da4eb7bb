"""Why a run is suspended: by a person, or by Kueue, which suspends what it has not let in.

Kueue's words are those of its Workload (kueue.x-k8s.io/v1beta1, v1beta2): conditions QuotaReserved,
Admitted, Evicted, and the state of its admission checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends.base import State
from orchestrator.backends.kubernetes_kinds import Target, metadata
from orchestrator.backends.kubernetes_reasons import short

Object = Mapping[str, Any]
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

# The reason of Kueue's condition Evicted.
EVICTED = {
    "AdmissionCheck": "an admission check has taken it back",
    "ClusterQueueStopped": "its ClusterQueue was stopped",
    "Deactivated": "it was deactivated",
    "LocalQueueStopped": "its LocalQueue was stopped",
    "NodeFailures": "its nodes have failed",
    "PodsReadyTimeout": "its pods were not ready in time",
    "Preempted": "it was preempted",
}


def suspended(target: Target, live: Object, workload: Object | None) -> tuple[State, str]:
    """State and reason of a suspended object that nobody has cancelled.

    Args:
        workload: Kueue's Workload for it, if there is one.
    """
    if workload is not None:
        return _kueue(workload)
    queue = metadata(live, "labels").get(QUEUE_LABEL)
    if queue:
        return State.QUEUED, (
            f"Kueue has made no Workload for it yet (queue {queue}); if it stays so, Kueue does "
            f"not run or does not look after {target.kind.name}: its configuration names the "
            f"integration {integration(target)}"
        )
    about = live.get("metadata", {})
    words = target.resume_words(str(about.get("name")), str(about.get("namespace") or ""))
    return State.SUSPENDED, f"somebody has suspended it; this lets it go on: {words}"


def integration(target: Target) -> str:
    """What Kueue's configuration calls a kind."""
    return f"{target.kind.group}/{target.kind.name.lower()}"


def _kueue(workload: Object) -> tuple[State, str]:
    conditions = {
        str(one.get("type")): one for one in workload.get("status", {}).get("conditions") or ()
    }
    if workload.get("spec", {}).get("active") is False:
        why = _evicted(conditions) or "somebody has deactivated its Workload"
        return State.SUSPENDED, f"{why}: spec.active of the Workload is false"
    if _is_true(conditions, "Admitted"):
        return State.SUSPENDED, (
            "Kueue has admitted it, and it is suspended all the same; if it stays so, somebody "
            "suspends it again, or Kueue's controller does not run"
        )
    if _is_true(conditions, "QuotaReserved"):
        return State.QUEUED, f"Kueue holds its quota; {_checks(workload)}"
    message = str(conditions.get("QuotaReserved", {}).get("message") or "")
    queue = workload.get("spec", {}).get("queueName", "")
    waits = short(message) or f"waits in Kueue's queue {queue}"
    return State.QUEUED, "; ".join(w for w in (_evicted(conditions), waits) if w)


def _evicted(conditions: Mapping[str, Object]) -> str:
    if not _is_true(conditions, "Evicted"):
        return ""
    evicted = conditions["Evicted"]
    reason = str(evicted.get("reason", ""))
    known = next((words for name, words in EVICTED.items() if reason.startswith(name)), reason)
    return short(f"{known}: {evicted.get('message', '')}".rstrip(": "))


def _is_true(conditions: Mapping[str, Object], type_: str) -> bool:
    return conditions.get(type_, {}).get("status") == "True"


def _checks(workload: Object) -> str:
    """Which admission checks it waits for."""
    checks = workload.get("status", {}).get("admissionChecks") or ()
    waiting = [one for one in checks if one.get("state") != "Ready"]
    names = ", ".join(f"{one.get('name')} ({one.get('state')})" for one in waiting)
    message = next((str(one.get("message")) for one in waiting if one.get("message")), "")
    return short(f"waits for the admission check {names}: {message}".rstrip(": "))
