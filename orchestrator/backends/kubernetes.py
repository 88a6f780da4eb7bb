"""Runs jobs on a Kubernetes cluster as PyTorchJob, TrainJob, JobSet or Job, by its API server.

The object is the receipt: its name is the run, an annotation has the hash of what was rendered. The
run folder lies on a volume of the pods.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.backends import kubernetes_apply
from orchestrator.backends.base import (
    After,
    Element,
    Handle,
    RenderedFiles,
    State,
    Status,
    Submission,
)
from orchestrator.backends.kubernetes_apply import Order, check_ours, is_alive, pods_of
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_errors import NotThere
from orchestrator.backends.kubernetes_kinds import (
    CANCELLED_ANNOTATION,
    HASH_ANNOTATION,
    MANAGED_BY,
    MANAGER,
    POD,
    RUN_LABEL,
    TARGETS,
    Object,
    Target,
    metadata,
)
from orchestrator.backends.kubernetes_look import read_statuses
from orchestrator.backends.kubernetes_queues import deactivate
from orchestrator.backends.runstore import RunStore
from orchestrator.errors import BackendError, UserError

WATCH_S = 30.0  # then the pods are listed again, whatever a watch has told


@dataclass(frozen=True)
class KubernetesBackend:
    """The backend of one target.

    Args:
        target: what a run's object is.
        cluster: the namespace in which it is.
    """

    target: Target
    cluster: Cluster
    poll_s: float = 3.0

    @property
    def name(self) -> str:
        return self.target.name

    def at(self, ssh: str) -> KubernetesBackend:
        """Raises UserError: an API server is asked from here."""
        raise UserError(
            f"ssh: {ssh}: a cluster with the target {self.name} is reached by its API server. "
            "Leave ssh out; kubernetes.context names the kubeconfig's context."
        )

    def for_site(self, facts: Mapping[str, Any]) -> KubernetesBackend:
        """The same in the context and namespace that a profile's `kubernetes` gives."""
        place = facts.get("context"), facts.get("namespace"), os.environ.get("KUBECONFIG")
        return replace(self, cluster=_cluster(*place))

    def submit(
        self,
        rendered: RenderedFiles,
        *,
        runs_root: Path,
        workdir: Path,
        job_text: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        """Make the run's objects, unless they are there and run, or it is done.

        Args:
            runs_root: folder in the pods.
            workdir, job_text: not needed; the plan has the folder in the pods.
        """
        _refuse(rendered.name, fresh=fresh, after=after)
        order = Order(self.cluster, self.target, rendered)
        live = self.cluster.find(self.target.kind, rendered.name)
        handle = self._handle(rendered.name, runs_root / rendered.name)
        if live is not None and (told := self._told(order, live, handle)):
            return Submission(handle, False, told)
        if live is not None:
            order.remove(live)
        order.start()
        words = "continues" if live else "is submitted"
        text = f"{handle.run} {words} as {self.target.kind.name} in {self.cluster.label}"
        text += f"; its folder in the pods is {handle.run_dir}"
        return Submission(handle, True, text + self._resume_words(order))

    def _resume_words(self, order: Order) -> str:
        """What to do with a run that starts suspended."""
        if not self.target.is_suspended(order.main):
            return ""
        words = self.target.resume_words(order.name, self.cluster.namespace)
        return f"\nit is suspended (kubernetes.suspend) until somebody says: {words}"

    def _told(self, order: Order, live: Object, handle: Handle) -> str:
        """Why nothing is started; "" where what is there has ended and makes room.

        Raises BackendError where it runs with other contents.
        """
        check_ours(self.cluster, live, order.name)
        if live["metadata"].get("deletionTimestamp"):
            return ""
        (status,) = self.status([handle])
        is_same = metadata(live, "annotations").get(HASH_ANNOTATION) == order.hash
        if status.state is State.DONE:  # its folder says so too: nothing would be trained
            other = "" if is_same else " (with other contents than those of now)"
            return f"{order.name} is done{other}: nothing to start; another name starts it anew"
        if status.state.is_final:
            return ""
        where = f"in {self.cluster.label} ({status.state.value})"
        if not is_same:
            raise BackendError(
                f"{order.name} is {where} with other contents than those of now. Cancel it, then "
                f"submit again and it goes on with the new ones: orchestrate cancel {order.name}"
            )
        order.adopt(live)
        why = f": {status.reason}" if status.state is State.SUSPENDED else ""
        return f"{order.name} is {where} already: nothing started{why}"

    def online_check(self, rendered: RenderedFiles) -> str:
        """What the API server says to the objects without making them.

        Raises BackendError if it would refuse one.
        """
        found = kubernetes_apply.dry_run(self.cluster, self.target, rendered, as_new=True)
        kinds = ", ".join(str(after["kind"]) for _, after in found)
        return f"{self.cluster.label}: the API server takes {rendered.name} ({kinds})"

    def dry_run(
        self, rendered: RenderedFiles, *, force: bool = False
    ) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]:
        """For each object what is there, or None, and what a submit would make of it."""
        return kubernetes_apply.dry_run(self.cluster, self.target, rendered, force=force)

    def handle(self, run_dir: Path) -> Handle:
        """The handle of a run by its folder's name. Raises UserError if there is no such object."""
        name = run_dir.name
        live = self.cluster.find(self.target.kind, name)
        if live is None:
            raise UserError(
                f"no run {name!r}: there is no {self.target.kind.name} {name} in "
                f"{self.cluster.label}. `orchestrate list` shows the runs of a cluster profile."
            )
        check_ours(self.cluster, live, name)
        return self._handle(name, run_dir)

    def _handle(self, run: str, run_dir: Path) -> Handle:
        return Handle(self.name, run, run_dir, {"namespace": self.cluster.namespace})

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle."""
        return read_statuses(self.cluster, self.target, [handle.run for handle in handles])

    def elements(self, handle: Handle) -> list[Element]:
        """None: sweeps are not for Kubernetes."""
        return []

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        """Suspend the run and wait until its pods are gone, each after its checkpoint, or at once.

        Raises BackendError if they stay longer than their grace and two minutes.
        """
        (status,) = self.status([handle])
        if status.state.is_final:
            return f"{handle.run} does not run: {status.state.value} ({status.reason})"
        live = self.cluster.get(self.target.kind, handle.run)
        pods = pods_of(self.cluster, handle.run)
        self._suspend(live)
        self._await_no_pods(handle.run, pods, now)
        (status,) = self.status([handle])
        return f"{handle.run}: {status.state.value} ({status.reason})"

    def _suspend(self, live: Object) -> None:
        """The annotation first tells that somebody wanted it, and for good."""
        name = live["metadata"]["name"]
        about = {"metadata": {"annotations": {CANCELLED_ANNOTATION: "true"}}}
        self.cluster.patch(self.target.kind, name, {**about, **self.target.suspension(True)})
        deactivate(self.cluster, live)

    def _await_no_pods(self, run: str, pods: Sequence[Object], now: bool) -> None:
        """Watch the pods until all have ended; with `now` kill those that there are each time."""
        limit_s = kubernetes_apply.LEAVE_GRACE_S + (0 if now else kubernetes_apply.grace_s(pods))
        deadline, labels = time.monotonic() + limit_s, f"{RUN_LABEL}={run}"
        killed: set[str] = set()
        while True:
            found, version = self.cluster.snapshot(POD, labels)
            alive = [pod["metadata"]["name"] for pod in found if is_alive(pod)]
            left_s = deadline - time.monotonic()
            if not alive:
                return
            if left_s <= 0:
                break
            if now:
                self._kill(set(alive) - killed)
                killed |= set(alive)
            self.cluster.await_change(POD, version, labels, min(left_s, WATCH_S))
        raise BackendError(
            f"{run} did not stop within {limit_s:g} s: {', '.join(alive)} still run. Does the "
            "operator run? --now kills them."
        )

    def _kill(self, pods: Iterable[str]) -> None:
        for pod in sorted(pods):
            with suppress(NotThere):
                self.cluster.delete(POD, pod, grace_s=0)

    def list(self, runs_root: Path) -> list[Handle]:
        """All runs in the namespace that are of this kind, by name."""
        found = self.cluster.objects(self.target.kind, f"{MANAGED_BY}={MANAGER}")
        names = sorted(thing["metadata"]["name"] for thing in found)
        return [self._handle(name, runs_root / name) for name in names]

    def run_store(self, handle: Handle) -> RunStore:
        """Access to the run folder, through a pod."""
        from orchestrator.backends.kubernetes_store import store_of

        return store_of(self.cluster, self.target, handle)


@lru_cache
def _cluster(context: str | None, namespace: str | None, kubeconfig: str | None) -> Cluster:
    """One for all questions of a command: a plug-in that gives credentials may take seconds."""
    return Cluster(context=context, wanted_namespace=namespace)


def _refuse(name: str, *, fresh: bool, after: Sequence[After]) -> None:
    """Raises UserError for what other backends can."""
    if fresh:
        raise UserError(
            "--fresh: the run folder lies on a volume of the cluster, where nothing is renamed "
            f"from here. Give the run another name: --set name={name[:50]}-2"
        )
    if after:
        raise UserError(
            "after: Kubernetes has no queue in which one run waits for another. Submit this one "
            f"when the other has ended: orchestrate wait {after[0].target}"
        )


PYTORCHJOB, TRAINJOB, JOBSET, JOB = (
    KubernetesBackend(TARGETS[name], Cluster())
    for name in ("pytorchjob", "trainjob", "jobset", "job")
)
