"""What the test's API server has: resources as the discovery endpoints of a real one list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}


@dataclass(frozen=True)
class Resource:
    """A kind of object; `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ("status",)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As error messages name it: jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RESOURCES = (
    Resource("", "v1", "namespaces", "Namespace", namespaced=False),
    Resource("", "v1", "pods", "Pod", subresources=("status", "log", "exec")),
    Resource("", "v1", "services", "Service"),
    Resource("", "v1", "configmaps", "ConfigMap", subresources=()),
    Resource("", "v1", "secrets", "Secret", subresources=()),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("", "v1", "events", "Event", subresources=()),
    Resource("batch", "v1", "jobs", "Job"),
    Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
    Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
    Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),
    Resource("kueue.x-k8s.io", "v1beta1", "workloads", "Workload"),
    Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue"),
    Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
    Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
             namespaced=False, subresources=()),
)  # fmt: skip


def answer(path: str, resources: tuple[Resource, ...]) -> Json | None:
    """The answer to a discovery path, such as /apis/batch/v1; None for any other path."""
    if path == "/version":
        return dict(VERSION)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = dict.fromkeys(r.group for r in resources if r.group)
        listed = [_group(name, resources) for name in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    match path.strip("/").split("/"):
        case ["api", version]:
            return _resources("", version, resources)
        case ["apis", group]:
            return _group(group, resources) if group in {r.group for r in resources} else None
        case ["apis", group, version]:
            return _resources(group, version, resources)
    return None


def _group(name: str, resources: tuple[Resource, ...]) -> Json:
    versions = dict.fromkeys(r.version for r in resources if r.group == name)
    rows = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"kind": "APIGroup", "name": name, "versions": rows, "preferredVersion": rows[0]}


def _resources(group: str, version: str, resources: tuple[Resource, ...]) -> Json | None:
    found = [r for r in resources if (r.group, r.version) == (group, version)]
    rows = [row for resource in found for row in _rows(resource)]
    api_version = found[0].api_version if found else ""
    shell = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version}
    return {**shell, "resources": rows} if found else None


def _rows(resource: Resource) -> list[Json]:
    common = {"namespaced": resource.namespaced, "kind": resource.kind}
    one = {"name": resource.plural, "singularName": resource.kind.lower(), "verbs": VERBS}
    subs = [
        {"name": f"{resource.plural}/{sub}", "singularName": "", "verbs": ["get", "patch"]}
        for sub in resource.subresources
    ]
    return [{**row, **common} for row in [one, *subs]]
