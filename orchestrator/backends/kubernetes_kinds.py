"""What the kinds of Kubernetes objects are called, and where in them is what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

# Labels and annotations of what the launcher makes.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "orchestrate"
RUN_LABEL = "orchestrate.dev/run"
HASH_ANNOTATION = "orchestrate.dev/content-hash"
CANCELLED_ANNOTATION = "orchestrate.dev/cancelled"
# Kubernetes, "Well-Known Labels, Annotations and Taints".
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
# Training operator 1.9, pkg/apis/kubeflow.org/v1/common_types.go.
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"

Object = Mapping[str, Any]


class Kind(NamedTuple):
    """A kind of object.

    Args:
        group: its API group; "" for the core.
        version: of the group.
        name: as a manifest's `kind` has it.
        plural: as a path and a permission have it.
    """

    group: str
    version: str
    name: str
    plural: str

    @property
    def api_version(self) -> str:
        """As a manifest's `apiVersion` has it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As kubectl and messages have it: `pytorchjobs.kubeflow.org`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "") -> str:
        """The path of one object, or of all of a namespace."""
        root = f"/apis/{self.group}" if self.group else "/api"
        path = f"{root}/{self.version}/namespaces/{quote(namespace, safe='')}/{self.plural}"
        return f"{path}/{quote(name, safe='')}" if name else path


POD = Kind("", "v1", "Pod", "pods")
SERVICE = Kind("", "v1", "Service", "services")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
EVENT = Kind("", "v1", "Event", "events")
JOB = Kind("batch", "v1", "Job", "jobs")
JOBSET = Kind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
PYTORCHJOB = Kind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")
TRAINJOB = Kind("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
RUNTIME = Kind("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "Workload", "workloads")
NEW_WORKLOAD = Kind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")  # Kueue 0.15 on
VOLCANO_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
COSCHEDULING_GROUP = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")

KINDS = (POD, SERVICE, CONFIG_MAP, EVENT, JOB, JOBSET, PYTORCHJOB, TRAINJOB, RUNTIME, WORKLOAD,
         NEW_WORKLOAD, VOLCANO_GROUP, COSCHEDULING_GROUP)  # fmt: skip
BY_NAME = {(kind.api_version, kind.name): kind for kind in KINDS}

# Who serves a group, and what to install; without it the cluster knows no such objects.
OPERATORS = {
    "kubeflow.org": "the Kubeflow training operator (v1; github.com/kubeflow/trainer, branch "
    "release-1.9)",
    "trainer.kubeflow.org": "Kubeflow Trainer (v2; github.com/kubeflow/trainer)",
    "jobset.x-k8s.io": "JobSet (github.com/kubernetes-sigs/jobset)",
    "kueue.x-k8s.io": "Kueue (github.com/kubernetes-sigs/kueue)",
    "scheduling.volcano.sh": "Volcano (github.com/volcano-sh/volcano)",
    "scheduling.x-k8s.io": "coscheduling (github.com/kubernetes-sigs/scheduler-plugins)",
}


@dataclass(frozen=True)
class Target:
    """How a run looks as one kind of object.

    Args:
        name: of the target.
        kind: of the object.
        container: of the pods, in which node.py runs.
        suspend: where the object is suspended.
        done, failed: types of the conditions that are true at its end.
        selector: label of each of its pods; the value is the run's name.
    """

    name: str
    kind: Kind
    container: str
    suspend: tuple[str, ...]
    done: str
    failed: str
    selector: str = RUN_LABEL

    def is_suspended(self, live: Object) -> bool:
        """Whether somebody has asked for no pods."""
        value: Any = live
        for key in self.suspend:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value is True

    def suspension(self, value: bool) -> dict[str, Any]:
        """The part of an object that suspends it or lets it go on."""
        part: Any = value
        for key in reversed(self.suspend):
            part = {key: part}
        return dict(part)

    def resume_words(self, name: str, namespace: str) -> str:
        """The command that lets a suspended run go on; without `-n` where namespace is ""."""
        part = json.dumps(self.suspension(False), separators=(",", ":"))
        place = f" -n {namespace}" if namespace else ""
        return f"kubectl patch {self.kind.resource} {name}{place} --type merge -p '{part}'"

    def launcher_words(self, pod: Object) -> list[str]:
        """The words with which node.py was started in a pod."""
        containers = pod.get("spec", {}).get("containers", ())
        own = [one for one in containers if one.get("name") == self.container]
        return [str(w) for c in own for part in ("command", "args") for w in c.get(part) or ()]

    def node_rank(self, pod: Object) -> int | None:
        """Which node of the run a pod is, 0 for the host; None if it does not say."""
        labels, annotations = metadata(pod, "labels"), metadata(pod, "annotations")
        if self.kind != PYTORCHJOB:
            return _number(annotations.get(INDEX_ANNOTATION, labels.get(INDEX_ANNOTATION)))
        index = _number(labels.get(REPLICA_INDEX_LABEL))
        if labels.get(REPLICA_TYPE_LABEL) == "master" or index is None:
            return index
        is_elastic = "--node-rank-offset" not in self.launcher_words(pod)  # there is no Master
        return index if is_elastic else index + 1


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdecimal() else None


def metadata(thing: Object, part: str) -> Mapping[str, str]:
    """The labels or annotations of an object; empty without."""
    return thing.get("metadata", {}).get(part) or {}


def uid_of(thing: Object) -> str:
    """Which of all objects it is, also of those that have had its name."""
    return str(thing["metadata"]["uid"])


def is_owned(thing: Object, uid: str) -> bool:
    """Whether the object with this uid owns it."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


TARGETS = {
    target.name: target
    for target in (
        Target("pytorchjob", PYTORCHJOB, "pytorch", ("spec", "runPolicy", "suspend"),
               "Succeeded", "Failed"),
        Target("trainjob", TRAINJOB, "node", ("spec", "suspend"), "Complete", "Failed"),
        Target("jobset", JOBSET, "node", ("spec", "suspend"), "Completed", "Failed"),
        Target("job", JOB, "node", ("spec", "suspend"), "Complete", "Failed"),
    )
}  # fmt: skip
