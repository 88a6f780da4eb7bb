"""Puts a run's objects into a cluster once, and takes them out again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from orchestrator.backends.base import RenderedFiles
from orchestrator.backends.kubernetes_client import Cluster, kind_of
from orchestrator.backends.kubernetes_errors import AlreadyThere, Conflict, Unchangeable
from orchestrator.backends.kubernetes_kinds import (
    BY_NAME,
    CONFIG_MAP,
    HASH_ANNOTATION,
    MANAGED_BY,
    MANAGER,
    POD,
    RUN_LABEL,
    RUNTIME,
    TRAINJOB,
    Object,
    Target,
    is_owned,
    metadata,
    uid_of,
)
from orchestrator.errors import BackendError
from orchestrator.source import plain

# Another manager, so that what claims a name is none of what is applied.
CLAIM_MANAGER = f"{MANAGER}-claim"
CLAIM_ANNOTATION = "orchestrate.dev/submit"
# How long a submit may take from its claim to the object; later the claim is one that was left.
CLAIM_S = 120.0
# What goes by, beside the pods' own grace, until an operator and the garbage collector have acted.
LEAVE_GRACE_S = 120.0
POLLS_S = (0.1, 0.2, 0.4, 0.8, 1.5)  # then the last one again


@dataclass(frozen=True)
class Order:
    """A run that is to be in the cluster.

    Args:
        cluster: the namespace.
        target: what the run's object is.
        rendered: its files, among them one YAML file for each object.
    """

    cluster: Cluster
    target: Target
    rendered: RenderedFiles

    @property
    def name(self) -> str:
        return self.rendered.name

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        """All that is rendered, the run's own object last."""
        files = self.rendered.files.items()
        found = [plain(text) for name, text in files if name.endswith(".yaml")]
        return sorted(found, key=lambda thing: kind_of(thing) == self.target.kind)

    @property
    def main(self) -> dict[str, Any]:
        """The object that is the run."""
        return self.objects[-1]

    @property
    def others(self) -> Sequence[dict[str, Any]]:
        """What the run's object needs, and owns."""
        return self.objects[:-1]

    @property
    def hash(self) -> str:
        """Of all that is rendered."""
        return metadata(self.main, "annotations").get(HASH_ANNOTATION, "")

    def start(self) -> None:
        """Make all objects. One submit at a time may: two with other contents would be mixed.

        Raises BackendError where another one does, or a part is refused.
        """
        self._claim()
        for thing in self.others:
            self.cluster.apply(thing)
        self.adopt(self.cluster.apply(self.main))

    def adopt(self, live: Object) -> None:
        """Let the run's object own the others: who deletes it then deletes all."""
        owner = {"apiVersion": self.main["apiVersion"], "kind": self.main["kind"],
                 "name": self.name, "uid": uid_of(live)}  # fmt: skip
        for thing in self.others:
            there = self.cluster.find(kind_of(thing), thing["metadata"]["name"])
            if there is None or not is_owned(there, owner["uid"]):
                about = {**thing["metadata"], "ownerReferences": [owner]}
                self.cluster.apply({**thing, "metadata": about})

    def remove(self, live: Object) -> None:
        """Delete the run's object, what it owns and its pods; they are gone afterwards.

        What another submit makes meanwhile is left alone. Raises BackendError if they stay.
        """
        pods = pods_of(self.cluster, self.name)
        parts = [self.cluster.find(kind_of(t), t["metadata"]["name"]) for t in self.others]
        old = [live, *(part for part in parts if part and is_owned(part, uid_of(live)))]
        for thing in old:
            with suppress(Conflict):  # another one has this name by now
                self.cluster.delete(kind_of(thing), self.name, uid=uid_of(thing))
        self._await_gone([*old, *pods], grace_s(pods) + LEAVE_GRACE_S)

    def _await_gone(self, things: Sequence[Object], limit_s: float) -> None:
        deadline, left = time.monotonic() + limit_s, list(things)
        for pause_s in pauses_s():
            left = self._still_there(left)
            if not left:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
        names = ", ".join(f"{kind_of(t).resource} {t['metadata']['name']}" for t in left)
        raise BackendError(
            f"{self.cluster.label}: after {limit_s:g} s still there: {names}. Does its controller "
            "run? A finalizer of one that is gone keeps an object: `kubectl describe` shows it."
        )

    def _still_there(self, things: Sequence[Object]) -> list[Object]:
        """Those that are there, these very ones; a pod that has ended takes nobody's place."""
        live = [pod for pod in pods_of(self.cluster, self.name) if is_alive(pod)]
        for thing in things:
            if kind_of(thing) != POD:
                found = self.cluster.find(kind_of(thing), thing["metadata"]["name"])
                live += [found] if found else []
        uids = {uid_of(one) for one in live}
        return [thing for thing in things if uid_of(thing) in uids]

    def _claim(self) -> None:
        """Make the run's ConfigMap, still empty, with the hash: only one submit can."""
        about = {"name": self.name, "labels": {RUN_LABEL: self.name, MANAGED_BY: MANAGER},
                 "annotations": {CLAIM_ANNOTATION: self.hash}}  # fmt: skip
        claim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about}
        try:
            self.cluster.create(claim, CLAIM_MANAGER)
        except AlreadyThere:
            if self._is_left_over():
                self.cluster.create(claim, CLAIM_MANAGER)

    def _is_left_over(self) -> bool:
        """Whether the claim of another submit was left by it, which removes it; False where it is
        one of the same contents."""
        live = self.cluster.find(CONFIG_MAP, self.name)
        if live is None:
            return True
        check_ours(self.cluster, live, self.name)
        notes = metadata(live, "annotations")  # one that was not submitted has no claim
        if notes.get(CLAIM_ANNOTATION, notes.get(HASH_ANNOTATION)) == self.hash:
            return False
        self._refuse_rival(live)
        self.cluster.delete(CONFIG_MAP, self.name, uid=uid_of(live))
        return True

    def _refuse_rival(self, claim: Object) -> None:
        """Raises BackendError if the other submit has made its object, or may still do so."""
        owners = claim["metadata"].get("ownerReferences") or ()
        for owner in owners:
            kind = BY_NAME.get((owner["apiVersion"], owner["kind"]))
            if kind and self.cluster.find(kind, owner["name"]):
                if kind == self.target.kind:
                    raise BackendError(f"{self.name} has just been submitted by somebody else")
                raise BackendError(
                    f"{self.cluster.label}: {self.name} is there as a {kind.name}: choose the "
                    f"cluster profile for it, or another name, or `kubectl delete {kind.resource} "
                    f"{self.name}`; the run folder stays"
                )
        if not owners and _age_s(claim) < CLAIM_S:
            raise BackendError(
                f"{self.cluster.label}: another submit of {self.name}, with other contents, is "
                f"under way or was cut off: look with `orchestrate status {self.name}`, or submit "
                f"again in {CLAIM_S:.0f} s"
            )


def dry_run(
    cluster: Cluster,
    target: Target,
    rendered: RenderedFiles,
    *,
    force: bool = False,
    as_new: bool = False,
) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """For each object what is there, or None, and what it would be after a submit.

    Nothing is changed. Raises BackendError where the server would refuse one.

    Args:
        force: show also what other managers own, and what would have to be made anew: the object
            as it is rendered.
        as_new: a submit would first remove the run's object that is there: ask for the new one
            under another name, since most of the old one could not be changed.
    """
    order = Order(cluster, target, rendered)
    pairs = [_dry(order, thing, force) for thing in order.others]
    return [*pairs, _dry(order, _renamed(order) if as_new else order.main, force)]


def _renamed(order: Order) -> dict[str, Any]:
    """The run's object, under another name where there is one with other contents."""
    live = order.cluster.find(order.target.kind, order.name)
    if live is None or metadata(live, "annotations").get(HASH_ANNOTATION) == order.hash:
        return order.main
    name = f"{order.name[:46].rstrip('-')}-check"  # no longer than a run's name may be
    return {**order.main, "metadata": {**order.main["metadata"], "name": name}}


def _dry(
    order: Order, thing: dict[str, Any], force: bool
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    live = order.cluster.find(kind_of(thing), thing["metadata"]["name"])
    try:
        return live, order.cluster.apply(thing, dry_run=True, force=force)
    except Unchangeable:
        if not force:
            raise
        return live, thing
    except BackendError as error:
        # Trainer's webhook looks for the runtime, which a dry run does not make.
        if "runtime" not in str(error).lower() or not _lacks_runtime(order, thing):
            raise
        return live, thing


def _lacks_runtime(order: Order, thing: Object) -> bool:
    return kind_of(thing) == TRAINJOB and order.cluster.find(RUNTIME, order.name) is None


def check_ours(cluster: Cluster, live: Object, name: str) -> None:
    """Raises BackendError for an object that this tool did not make for a run of this name."""
    labels = metadata(live, "labels")
    if labels.get(MANAGED_BY) != MANAGER or labels.get(RUN_LABEL) != name:
        kind = f"{live.get('kind', 'object')} {name}"
        raise BackendError(
            f"{cluster.label}: there is a {kind} that orchestrate has not made; it is left alone. "
            "Choose another name for the run."
        )


def pods_of(cluster: Cluster, run: str) -> list[dict[str, Any]]:
    """All pods of a run."""
    found = cluster.objects(POD, f"{RUN_LABEL}={run}")
    return [{**pod, "apiVersion": "v1", "kind": "Pod"} for pod in found]


def is_alive(pod: Object) -> bool:
    """Whether its containers run, or may still run."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def grace_s(pods: Iterable[Object]) -> float:
    """The longest time in seconds that one of the pods is given to stop; 0 without pods."""
    key = "terminationGracePeriodSeconds"
    return max((float(pod.get("spec", {}).get(key) or 30) for pod in pods), default=0.0)


def pauses_s() -> Iterator[float]:
    """Pauses in seconds between looks, which whoever looks must bound."""
    yield from POLLS_S
    while True:
        yield POLLS_S[-1]


def _age_s(live: Object) -> float:
    made = datetime.fromisoformat(live["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - made).total_seconds()
