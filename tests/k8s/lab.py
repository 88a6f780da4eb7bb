"""A whole cluster on this machine: the test's API server, controllers by the manifests' own rules,
and pods as processes. What is sent to the server is what runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k8s.apiserver import ApiServer
from k8s.controllers import Do, JobSets
from k8s.discovery import Json
from k8s.network import Network
from k8s.simulation import Cluster, Running
from k8s.storage import now

PLURALS = ("pytorchjobs", "trainjobs", "jobsets", "jobs")
PARTS = {"TrainJob": ["trainingruntimes"], "Job": ["services"]}  # besides the ConfigMap
TICK_S = 0.05


@dataclass
class PodObject:
    """A pod as the server shows it."""

    name: str
    namespace: str
    running: Running
    read: int = 0  # bytes of its log that the server has
    told: bool = False  # that it has ended
    signalled: bool = False


@dataclass
class Owner:
    """A run's object, and its pods."""

    plural: str
    namespace: str
    name: str
    uid: str
    cluster: Cluster
    pods: list[PodObject] = field(default_factory=list)
    suspended: bool = False


class Lab:
    """Controllers and kubelet of a server, in a thread of their own.

    Args:
        claims: the folder behind each PersistentVolumeClaim, in any namespace.
    """

    def __init__(
        self, server: ApiServer, folder: Path, network: Network, claims: Mapping[str, Path]
    ) -> None:
        self.server, self.folder, self.network, self.claims = server, folder, network, claims
        self.owners: dict[str, Owner] = {}
        self.closing = threading.Event()
        self.fault: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        server.store.graceful_pods, server.enter = True, self._enter

    def __enter__(self) -> Lab:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.thread.join()
        for owner in self.owners.values():
            owner.cluster.close()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            while not self.closing.wait(TICK_S):
                self._reconcile()
        except BaseException as fault:
            self.fault = fault  # told at the end, by the test's thread

    def _reconcile(self) -> None:
        live: dict[str, Json] = {}
        for plural, obj in self._objects():
            uid = obj["metadata"]["uid"]
            live[uid] = obj
            if uid not in self.owners and not is_suspended(obj):
                self._adopt(plural, obj)
        for uid, owner in list(self.owners.items()):
            self._drive(owner, live.get(uid))

    def _drive(self, owner: Owner, obj: Json | None) -> None:
        """Do what is due for a run; `obj` is its object, None once it is deleted."""
        if (obj is None or is_suspended(obj)) and not owner.suspended:
            owner.suspended = True
            owner.cluster.end_pods()
        owner.cluster.step()
        for pod in owner.pods:  # before new ones: a PyTorchJob's pod made anew has the same name
            self._keep(owner, pod)
        self._show_new_pods(owner)
        if obj is not None:
            self._tell(owner, obj)
        elif not owner.cluster.live:
            del self.owners[owner.uid]

    def _objects(self) -> Iterator[tuple[str, Json]]:
        for plural in PLURALS:
            yield from ((plural, obj) for obj in self.server.list(plural))

    def _adopt(self, plural: str, obj: Json) -> None:
        """Begin a run, once all that it needs is there."""
        meta = obj["metadata"]
        parts = [obj]
        for kind in ("configmaps", *PARTS.get(obj["kind"], [])):
            found = self.server.list(kind, meta["namespace"])
            parts += [part for part in found if part["metadata"]["name"] == meta["name"]]
        if len(parts) < 2 + len(PARTS.get(obj["kind"], [])):
            return
        objects = {part["kind"]: part for part in parts}
        maps = {m["metadata"]["name"]: m for m in self.server.list("configmaps", meta["namespace"])}
        folder = self.folder / meta["uid"]
        cluster = Cluster(objects, folder, self.network, self.claims, maps)
        owner = Owner(plural, meta["namespace"], meta["name"], meta["uid"], cluster)
        self.owners[meta["uid"]] = owner
        cluster.start()

    def _show_new_pods(self, owner: Owner) -> None:
        """Give the pods of a run that were just started an object."""
        for running in owner.cluster.history[len(owner.pods) :]:
            number = len(owner.pods)
            same = owner.plural == "pytorchjobs"  # the others' names end in random letters
            name = running.pod.hostname if same else f"{running.pod.hostname}-{number:05}"
            owner.pods.append(PodObject(name, owner.namespace, running))
            self.server.create(pod_object(owner, owner.pods[-1]), owner.namespace)

    def _shown(self, namespace: str, name: str) -> Json | None:
        found = self.server.list("pods", namespace)
        return next((pod for pod in found if pod["metadata"]["name"] == name), None)

    def _enter(self, namespace: str, name: str) -> list[str]:
        pods = [pod for owner in self.owners.values() for pod in owner.pods]
        (pod,) = [p for p in pods if (p.namespace, p.name) == (namespace, name) and not p.told]
        return pod.running.enter()

    def _keep(self, owner: Owner, pod: PodObject) -> None:
        """Bring what the server shows of a pod, and the pod, together."""
        if pod.told:
            return
        shown = self._shown(pod.namespace, pod.name)
        self._copy_log(owner, pod)
        if pod.running.code is not None:
            pod.told = True
            self._end(owner, pod, shown)
        elif shown is None:
            pod.running.send(signal.SIGKILL)
        elif shown["metadata"].get("deletionTimestamp") and not pod.signalled:
            pod.signalled = True
            pod.running.send(signal.SIGTERM)

    def _copy_log(self, owner: Owner, pod: PodObject) -> None:
        with pod.running.log.open("rb") as file:
            file.seek(pod.read)
            data = file.read()
        whole = data if pod.running.code is not None else data[: data.rfind(b"\n") + 1]
        if whole:
            container = str(pod.running.pod.container["name"])
            self.server.logs.write(pod.name, whole, container=container, namespace=pod.namespace)
            pod.read += len(whole)

    def _end(self, owner: Owner, pod: PodObject, shown: Json | None) -> None:
        container = str(pod.running.pod.container["name"])
        self.server.logs.end(pod.name, container=container, namespace=pod.namespace)
        anew = owner.cluster.start_all or (
            owner.plural == "pytorchjobs" and (pod.running.code or 0) >= 128
        )
        if shown is None:
            return
        if shown["metadata"].get("deletionTimestamp") or owner.suspended or anew:
            self.server.delete("pods", pod.name, pod.namespace)
        else:
            self.server.set("pods", pod.name, pod.namespace, status=pod_status(pod))

    def _tell(self, owner: Owner, obj: Json) -> None:
        status = status_of(owner, owner.cluster)
        if status != obj.get("status"):
            self.server.set(owner.plural, owner.name, owner.namespace, status=status)


def is_suspended(obj: Json) -> bool:
    spec = obj["spec"]
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def pod_object(owner: Owner, pod: PodObject) -> Json:
    seen = pod.running.pod
    reference = {"apiVersion": "v1", "kind": "Owner", "name": owner.name, "uid": owner.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "labels": dict(seen.labels),
            "annotations": dict(seen.annotations),
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": {**seen.template["spec"], "nodeName": "this-machine"},
        "status": pod_status(pod),
    }


def pod_status(pod: PodObject) -> Json:
    code, given = pod.running.code, pod.running.pod.container
    if code is None:
        phase, state = "Running", Json(running={"startedAt": now()})
    else:
        phase = "Failed" if code else "Succeeded"
        reason = "Error" if code else "Completed"
        state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()}}
    container: Json = {"name": given["name"], "state": state, "restartCount": 0}
    container |= {"ready": code is None, "image": given["image"], "imageID": ""}
    return {"phase": phase, "podIP": pod.running.address, "containerStatuses": [container]}


def status_of(owner: Owner, cluster: Cluster) -> Json:
    """The status of a run's object as its controller writes it."""
    done = {"pytorchjobs": "Succeeded", "jobsets": "Completed"}.get(owner.plural, "Complete")
    types = []
    if owner.suspended:
        types.append("Suspended")
    elif cluster.state is not Do.NOTHING and not cluster.live:
        types.append(done if cluster.state is Do.DONE else "Failed")
    elif owner.plural == "pytorchjobs":
        types.append("Restarting" if len(cluster.history) > len(cluster.pods) else "Running")
    conditions = [{"type": type_, "status": "True", "reason": "Lab"} for type_ in types]
    status: Json = {"conditions": conditions}
    if isinstance(cluster.controller, JobSets) and owner.plural == "jobsets":
        status["restarts"] = cluster.controller.restarts
    if owner.plural == "jobs":
        ended = [code for code in cluster.codes if code]
        status |= {"active": len(cluster.live), "failed": len(ended)}
    return status
