"""The state of a run on Kubernetes, from its object, its pods and their events. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.backends.base import State, Status
from orchestrator.backends.kubernetes_kinds import CANCELLED_ANNOTATION, Target, metadata
from orchestrator.backends.kubernetes_nodes import least_nodes, num_nodes
from orchestrator.backends.kubernetes_pods import (
    Phase,
    PodFacts,
    about,
    newest,
    pod_facts,
    warning,
)
from orchestrator.backends.kubernetes_reasons import GIVEN_UP, short
from orchestrator.backends.kubernetes_said import Said, read_said
from orchestrator.backends.kubernetes_waiting import suspended

Object = Mapping[str, Any]
CONTINUE = "submit it again to continue"
WHYS_LIMIT = 3  # of how many nodes a reason tells
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"  # JobSet, api/jobset/v1alpha2


@dataclass(frozen=True)
class Seen:
    """What a cluster says of a run.

    Args:
        target: what the run is.
        run: its name, and that of its object.
        live: the object; None if there is none.
        pods: its pods, those of earlier attempts too.
        events: those of its namespace, or those about it, in any order.
        workload: Kueue's Workload for it, if any.
        log: the end of the log of node 0's pod.
    """

    target: Target
    run: str
    live: Object | None
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    workload: Object | None = None
    log: bytes = field(default=b"", repr=False)

    @cached_property
    def own_events(self) -> list[Object]:
        """Events about the run since its object was made, the newest last."""
        names = {self.run, f"{self.run}-node-0"}
        names |= {str(pod.get("metadata", {}).get("name")) for pod in self.pods}
        since = str((self.live or {}).get("metadata", {}).get("creationTimestamp", ""))
        found = [e for e in self.events if about(e) in names and when(e)[:19] >= since[:19]]
        return sorted(found, key=when)

    @cached_property
    def facts(self) -> list[PodFacts]:
        """Of all pods."""
        return [pod_facts(self.target, pod, self.own_events) for pod in self.pods]

    @cached_property
    def nodes(self) -> dict[int, PodFacts]:
        """The newest pod of each node."""
        return newest(self.facts)

    @cached_property
    def said(self) -> Said:
        return read_said(self.log)

    @property
    def active(self) -> list[PodFacts]:
        return [pod for pod in self.facts if pod.is_active]

    def condition(self, type_: str) -> Object | None:
        """A condition of the object that is true; None otherwise."""
        return condition(self.live or {}, type_)


def condition(thing: Object, type_: str, status: str = "True") -> Object | None:
    """The condition of an object that has this type and status; None if there is none."""
    for one in thing.get("status", {}).get("conditions") or ():
        if one.get("type") == type_ and one.get("status") == status:
            found: Object = one
            return found
    return None


def when(event: Object) -> str:
    """When an event was seen last."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = event.get("metadata", {}).get("creationTimestamp")
    return str(next((time for time in (*times, created) if time), ""))


def status_of(seen: Seen) -> Status:
    """The status of a run."""
    state, reason = judge(seen)
    said = seen.said
    return Status(seen.run, state, said.attempt, short(reason), said.step, said.steps)


def unanswered(run: str, why: str) -> Status:
    """The status of a run on a cluster that gives no answer."""
    return Status(run, State.UNKNOWN, reason=short(why))


def judge(seen: Seen) -> tuple[State, str]:
    """State and reason."""
    if seen.live is None:
        kind = seen.target.kind.name
        gone = f"there is no {kind} {seen.run} in the cluster (any more)"
        return State.LOST, f"{gone}: somebody or kubernetes.keep_finished deleted it; {CONTINUE}"
    head = seen.nodes.get(0)
    done, failed = seen.condition(seen.target.done), seen.condition(seen.target.failed)
    if head is not None and head.phase is Phase.DONE:
        return _head_done(seen, is_final=bool(done or failed))
    if done is not None:
        return _said_done(seen, head)
    if failed is not None:
        return _failed(seen, failed)
    if seen.target.is_suspended(seen.live):
        return _suspended(seen)
    return _by_pods(seen)


def _head_done(seen: Seen, *, is_final: bool) -> tuple[State, str]:
    """All nodes leave with the code of node 0, and 0 only after it has marked the run as finished:
    that counts, and not what the object says (kubeflow/trainer#1711, #1751)."""
    others = sorted(pod.node for pod in seen.nodes.values() if pod.is_active and pod.node)
    if others and not is_final:
        return State.RUNNING, f"node 0 is done; still ending: node {_list(others)}"
    return State.DONE, "done"


def _said_done(seen: Seen, head: PodFacts | None) -> tuple[State, str]:
    """The object says that it is done, and the pod of node 0 does not."""
    says = f"{seen.target.kind.name} says {seen.target.done}, but"
    if head is not None and head.phase is Phase.FAILED:
        return State.FAILED, f"{says} {head}"
    if seen.active:
        return State.RUNNING, f"{says} some of its pods are still there: {len(seen.active)}"
    return State.DONE, "done"


def _failed(seen: Seen, failed: Object) -> tuple[State, str]:
    reason, message = str(failed.get("reason", "")), str(failed.get("message", ""))
    given_up = f"{GIVEN_UP[reason]} ({reason})" if reason in GIVEN_UP else message or reason
    if seen.live and CANCELLED_ANNOTATION in metadata(seen.live, "annotations"):
        return State.CANCELLED, joined(seen.said.end, CONTINUE)
    guilty = culprit(seen.nodes.values())
    return State.FAILED, joined(_last_words(seen), str(guilty or ""), given_up)


def _last_words(seen: Seen) -> str:
    """Why node 0 has ended, in its own words: before an attempt has begun there is no better."""
    head = seen.nodes.get(0)
    is_over = head is not None and head.phase is Phase.FAILED
    return seen.said.end or (seen.said.last if is_over else "")


def culprit(pods: Any) -> PodFacts | None:
    """The pod whose end was the cause of the others': one that was ended from outside or that was
    lost, then the first with a configuration error or a hang, then the first at all."""
    failed = [pod for pod in pods if pod.phase is Phase.FAILED]
    return min(failed, key=_guilt, default=None)


def _guilt(pod: PodFacts) -> tuple[bool, int, str, int]:
    grave = {78: 0, 207: 1, 1: 2}.get(pod.code or -1, 3)
    return not pod.is_outside, grave, pod.finished or "9", pod.node or 0


def _suspended(seen: Seen) -> tuple[State, str]:
    live = seen.live or {}
    stopping = f"pods that are still stopping: {len(seen.active)}"
    if CANCELLED_ANNOTATION in metadata(live, "annotations"):
        if seen.active:
            return State.RUNNING, f"it is being cancelled: {stopping}"
        return State.CANCELLED, joined(seen.said.end, CONTINUE)
    state, reason = suspended(seen.target, live, seen.workload)
    return state, joined(reason, stopping if seen.active else "")


def _by_pods(seen: Seen) -> tuple[State, str]:
    """Nobody holds it back and nobody says that it is over."""
    if not seen.pods:
        return _no_pods(seen)
    total = num_nodes(seen.target, seen.live or {}, seen.pods) or len(seen.nodes) or len(seen.pods)
    pods = list(seen.nodes.values()) or seen.facts
    ready = sum(pod.phase is Phase.RUNNING for pod in pods)
    words = f"{ready}/{max(total, ready)} pods ready"
    guilty = culprit(pods)
    if guilty is not None:
        return State.RESTARTING, joined(_last_words(seen), str(guilty), words, _again(seen))
    if ready >= (least_nodes(seen.target, seen.pods) or total):
        return State.RUNNING, words
    state = State.RESTARTING if _restarts(seen) else State.PENDING
    return state, joined(words, _whys(pods, total), _again(seen))


def _whys(pods: Sequence[PodFacts], total: int) -> str:
    """Why the others are not ready: each reason once, with the first node that has it."""
    waiting = [pod for pod in pods if pod.phase in (Phase.WAITING, Phase.ENDING)]
    first: dict[str, PodFacts] = {}
    for pod in sorted(waiting, key=lambda pod: pod.node or 0):
        first.setdefault(pod.why or pod.phase.value, pod)
    shown = [f"node {pod.node}: {why}" for why, pod in list(first.items())[:WHYS_LIMIT]]
    missing = total - len(pods)
    return joined(*shown, f"pods that are not made yet: {missing}" if missing > 0 else "")


def _no_pods(seen: Seen) -> tuple[State, str]:
    state = State.RESTARTING if _restarts(seen) else State.PENDING
    for event in reversed(seen.own_events):
        if words := warning(event):
            return state, joined(words, _again(seen))
    if state is State.PENDING and not (seen.live or {}).get("status", {}).get("conditions"):
        return state, _blank(seen.target)
    return state, joined("its pods are being made", _again(seen))


def _blank(target: Target) -> str:
    """A controller that has said nothing at all: slow, absent, or at a loss (the CRD of PyTorchJob
    lets values in that its operator cannot use)."""
    if target.kind.group == "batch":
        return "its pods are being made"
    text = f"the operator of {target.kind.name} has not looked at it yet; if it stays so, it does "
    if target.name == "pytorchjob":
        return text + "not run, or a value of the manifest is none that it knows (restartPolicy)"
    return text + "not run"


def _restarts(seen: Seen) -> int:
    """How often the run was started again, as far as that shows."""
    live = seen.live or {}
    if seen.target.name == "jobset":
        return int(live.get("status", {}).get("restarts") or 0)
    if seen.target.name == "pytorchjob":
        return int(seen.condition("Restarting") is not None)
    if seen.target.name == "job":
        failed = int(live.get("status", {}).get("failed") or 0)
        again = -(-failed // max(1, num_nodes(seen.target, live, seen.pods) or 1))
        # Those that were disrupted do not count as failed.
        same = Counter(pod.node for pod in seen.facts if pod.node is not None)
        return max(again, max(same.values(), default=1) - 1)
    labels = (metadata(pod, "labels").get(RESTART_LABEL, "") for pod in seen.pods)
    return max((int(label) for label in labels if label.isdecimal()), default=0)


def _again(seen: Seen) -> str:
    count = _restarts(seen)
    if not count or seen.target.name == "pytorchjob":
        return ""
    return f"started again {count} time{'s' if count > 1 else ''}"


def joined(*parts: str) -> str:
    """Those parts that are not empty."""
    return "; ".join(part for part in parts if part)


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:WHYS_LIMIT]))
    return shown if len(numbers) <= WHYS_LIMIT else f"{shown} and {len(numbers) - WHYS_LIMIT} more"
