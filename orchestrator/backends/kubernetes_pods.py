"""What a pod of a run is doing, and why, from its object and its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orchestrator.backends.kubernetes_kinds import Target
from orchestrator.backends.kubernetes_reasons import (
    ENDED,
    EVENTS,
    TERMINATED,
    WAITING,
    exit_words,
    refusal_words,
    scheduler_words,
    short,
)

Object = Mapping[str, Any]
SANDBOX = ("FailedCreatePodSandBox", "NetworkNotReady")
VOLUMES = ("FailedMount", "FailedAttachVolume", "FailedToRetrieveImagePullSecret")


class Phase(Enum):
    """Where a pod's launcher is."""

    WAITING = "waits"
    RUNNING = "runs"
    ENDING = "is being ended"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class PodFacts:
    """A pod.

    Args:
        name: of the pod.
        node: which node of the run it is, 0 for the host; None if it does not say.
        host: the cluster's node that it is on; "" if it is on none.
        phase: where its launcher is.
        code: exit code of the launcher; None while it runs, or where nobody saw it.
        why: why it waits or has failed, in words; "" where there is nothing to say.
        is_outside: whether it was ended from outside, and not by its own code.
        created, finished: times as the API has them; "" where they are not known.
    """

    name: str
    node: int | None
    host: str
    phase: Phase
    code: int | None = None
    why: str = ""
    is_outside: bool = False
    created: str = ""
    finished: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it holds what it has asked for, or is going to."""
        return self.phase in (Phase.WAITING, Phase.RUNNING, Phase.ENDING)

    def __str__(self) -> str:
        who = f"pod {self.name}" if self.node is None else f"node {self.node} (pod {self.name}"
        on = f" on {self.host}" if self.host else ""
        who += f"{on})" if self.node is not None else on
        return f"{who}: {self.why}" if self.why else who


def pod_facts(target: Target, pod: Object, events: Sequence[Object] = ()) -> PodFacts:
    """The facts of a pod.

    Args:
        target: what the run is.
        pod: the object.
        events: of any objects, the newest last.
    """
    metadata, status = pod.get("metadata", {}), pod.get("status", {})
    phase, code = _phase(target, pod)
    finished = _state(target, pod).get("terminated", {}).get("finishedAt") or ""
    why, is_outside = "", False
    if phase is Phase.FAILED:
        why, is_outside = _ended(target, pod, code)
    elif phase is Phase.WAITING:
        why = _waits(target, pod, [e for e in events if about(e) == metadata.get("name")])
    return PodFacts(
        str(metadata.get("name", "")),
        target.node_rank(pod),
        str(pod.get("spec", {}).get("nodeName") or status.get("nominatedNodeName") or ""),
        phase,
        code,
        why,
        is_outside,
        str(metadata.get("creationTimestamp", "")),
        str(finished),
    )


def newest(pods: Iterable[PodFacts]) -> dict[int, PodFacts]:
    """The newest pod of each node of the run, by node."""
    ordered = sorted(pods, key=lambda pod: (pod.created, pod.is_active, pod.name))
    return {pod.node: pod for pod in ordered if pod.node is not None}


def about(event: Object) -> str:
    """Name of the object that an event is about."""
    return str(event.get("involvedObject", {}).get("name", ""))


def _phase(target: Target, pod: Object) -> tuple[Phase, int | None]:
    """The phase, and the launcher's exit code: a sidecar may keep a pod running after it."""
    state, phase = _state(target, pod), pod.get("status", {}).get("phase")
    code = state.get("terminated", {}).get("exitCode")
    if isinstance(code, int) and (phase in ("Succeeded", "Failed") or not _will_restart(pod)):
        return (Phase.FAILED if code or phase == "Failed" else Phase.DONE), code
    if phase in ("Succeeded", "Failed"):
        return (Phase.DONE, 0) if phase == "Succeeded" else (Phase.FAILED, None)
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return Phase.ENDING, None
    return (Phase.RUNNING if "running" in state else Phase.WAITING), None


def _will_restart(pod: Object) -> bool:
    return pod.get("spec", {}).get("restartPolicy") in ("Always", "OnFailure")


def _state(target: Target, pod: Object) -> Object:
    """The state of the launcher's container; empty before there is one."""
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if container.get("name") == target.container:
            return container.get("state") or {}
    return {}


def _ended(target: Target, pod: Object, code: int | None) -> tuple[str, bool]:
    """Why it has failed, and whether that came from outside."""
    status, terminated = pod.get("status", {}), _state(target, pod).get("terminated", {})
    for reason in (status.get("reason"), disruption(pod)):
        if reason:
            words = ENDED.get(reason, "")
            message = status.get("message") or ""
            return short(": ".join(w for w in (str(reason), words or message) if w)), True
    reason = terminated.get("reason")
    if reason in TERMINATED:
        message = "" if reason == "OOMKilled" else str(terminated.get("message") or "")
        return short(": ".join(w for w in (reason, TERMINATED[reason], message) if w)), True
    return (exit_words(code) if code is not None else "it has failed"), code == 137


def disruption(pod: Object) -> str:
    """The reason by which it is, or was, taken away; "" if it is not."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason", ""))
    return ""


def _waits(target: Target, pod: Object, events: Sequence[Object]) -> str:
    return (
        _unscheduled(pod)
        or _image(pod, "initContainerStatuses")
        or _image(pod, "containerStatuses")
        or _warned(events)
        or _init(pod)
        or "its containers are being made"
    )


def _unscheduled(pod: Object) -> str:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        if condition.get("reason") == "SchedulingGated":
            return "held back by a scheduling gate: a queue has not let it in yet"
        return scheduler_words(str(condition.get("message") or "it waits for the scheduler"))
    if not pod.get("spec", {}).get("nodeName"):
        return "it waits for the scheduler"
    return ""


def _image(pod: Object, which: str) -> str:
    """Why a container waits; "" where nothing but patience is needed."""
    for container in pod.get("status", {}).get(which) or ():
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        words = WAITING.get(reason, "" if reason else None)
        if words is not None:
            message = str(waiting.get("message") or "")
            who = f"init container {container.get('name')}: " if which.startswith("init") else ""
            return short(who + ": ".join(w for w in (reason, words, message) if w))
    return ""


def _warned(events: Sequence[Object]) -> str:
    """The newest warning that keeps a pod from starting."""
    for event in reversed(events):
        reason = str(event.get("reason", ""))
        if event.get("type") == "Warning" and reason in (*SANDBOX, *VOLUMES):
            return short(f"{reason}: {EVENTS[reason]}: {event.get('message', '')}")
    return ""


def _init(pod: Object) -> str:
    """The init container that runs, such as the training operator's that waits for the Master."""
    for container in pod.get("status", {}).get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}):
            return f"its init container {container.get('name')} runs"
    return ""


def warning(event: Object) -> str:
    """What a warning about the object itself means; "" where it says nothing new."""
    reason, message = str(event.get("reason", "")), str(event.get("message", ""))
    if event.get("type") != "Warning" or reason not in EVENTS:
        return ""
    if reason.startswith("FailedCreate"):
        return f"{EVENTS[reason]}: {refusal_words(message)}"
    return short(f"{EVENTS[reason]}: {message}")
