"""What each pod of a run would see, computed from its manifests alone.

What controllers add is from the operators' own code as released: training-operator 1.9.4, JobSet
0.12.0, Kubernetes 1.36; what the kubelet does with `$(VAR)` from its third_party/forked/golang/
expansion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
NAMESPACE = "team"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")


@dataclass(frozen=True)
class Pod:
    """A pod before it has an address: its template and what its controller has made of it."""

    hostname: str
    template: Object
    names: tuple[str, ...]  # by which DNS knows it, without the domain of the cluster
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    injected: Mapping[str, str] = field(default_factory=dict)

    @property
    def container(self) -> Object:
        """The only container of the pod."""
        (container,) = self.template["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def all_names(self) -> list[str]:
        """All forms of its names that resolve in a pod of the same namespace."""
        tails = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
        return [name + tail for name in self.names for tail in tails]

    def field(self, path: str, address: str) -> str:
        """A field of the downward API."""
        if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
            return {"labels": self.labels, "annotations": self.annotations}[found[1]][found[2]]
        return {
            "metadata.name": self.hostname,
            "metadata.namespace": NAMESPACE,
            "status.podIP": address,
        }[path]

    def own_env(self, address: str) -> dict[str, str]:
        """The container's variables; an operator appends its own, so they win."""
        env: dict[str, str] = {}
        for entry in self.container.get("env", ()):
            reference = entry.get("valueFrom", {}).get("fieldRef")
            text = self.field(reference["fieldPath"], address) if reference else entry["value"]
            env[entry["name"]] = text if reference else expand(text, env)
        return env | dict(self.injected)

    def argv(self, address: str) -> list[str]:
        """What the kubelet starts."""
        env = self.own_env(address)
        words = [*self.container["command"], *self.container.get("args", ())]
        return [expand(word, env) for word in words]


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(VAR)` as the kubelet expands it: an unknown variable stays, `$$` is a dollar."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else env.get(found[2], found[0])

    return REFERENCE.sub(one, text)


def pods_of(objects: Mapping[str, Object]) -> list[Pod]:
    """The pods that these objects lead to, in the order of their nodes.

    Args:
        objects: the rendered objects by kind.
    """
    makers = {"PyTorchJob": _pytorchjob, "JobSet": _jobset, "TrainJob": _trainjob, "Job": _job}
    (kind,) = makers.keys() & objects.keys()
    return list(makers[kind](objects))


def _pytorchjob(objects: Mapping[str, Object]) -> Iterator[Pod]:
    job = objects["PyTorchJob"]
    specs = job["spec"]["pytorchReplicaSpecs"]
    name, port = job["metadata"]["name"], "23456"
    sizes = {kind: spec.get("replicas", 1) for kind, spec in specs.items()}
    common = {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": str(job["spec"].get("nprocPerNode", "auto")),
    }
    elastic = job["spec"].get("elasticPolicy")
    if elastic:
        common["PET_NNODES"] = f"{elastic['minReplicas']}:{elastic['maxReplicas']}"
        common |= {"PET_RDZV_ENDPOINT": f"{name}-worker-0:{port}", "PET_RDZV_BACKEND": "c10d"}
    for kind in ("Master", "Worker"):
        for index in range(sizes.get(kind, 0)):
            injected = common | ({} if "Master" not in sizes else _master(name, sizes, kind, index))
            yield _replica(specs[kind]["template"], name, kind.lower(), index, injected)


def _master(name: str, sizes: dict[str, int], kind: str, index: int) -> dict[str, str]:
    """What the training operator sets where there is a Master."""
    rank, total = str(index + (kind == "Worker")), str(sum(sizes.values()))
    head = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": "23456"}
    pet = {f"PET_{variable}": value for variable, value in head.items()}
    world = {"RANK": rank, "PET_NODE_RANK": rank, "WORLD_SIZE": total, "PET_NNODES": total}
    return head | pet | world


def _replica(
    template: Object, name: str, kind: str, index: int, injected: Mapping[str, str]
) -> Pod:
    labels = {
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": str(index),
    }
    hostname = f"{name}-{kind}-{index}"
    meta = template.get("metadata", {})
    return Pod(
        hostname,
        template,
        (hostname,),
        labels | meta.get("labels", {}),
        meta.get("annotations", {}),
        injected,
    )


def _job(objects: Mapping[str, Object]) -> Iterator[Pod]:
    job = objects["Job"]
    name = job["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    labels = {"batch.kubernetes.io/controller-uid": uid_of(job)}
    subdomain = job["spec"]["template"]["spec"].get("subdomain", "")
    for pod in _indexed(name, job["spec"], subdomain, labels):
        service = objects["Service"]["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True
        assert service["selector"].items() <= pod.labels.items()
        assert objects["Service"]["metadata"]["name"] == pod.template["spec"]["subdomain"]
        yield pod


def _jobset(objects: Mapping[str, Object]) -> Iterator[Pod]:
    jobset = objects["JobSet"]
    return _replicated(jobset["metadata"], jobset["spec"], None)


def _trainjob(objects: Mapping[str, Object]) -> Iterator[Pod]:
    """Kubeflow Trainer makes a JobSet of the runtime's template, named like the TrainJob."""
    train, runtime = objects["TrainJob"], objects["TrainingRuntime"]
    reference = train["spec"]["runtimeRef"]
    assert (reference["name"], reference["kind"]) == (runtime["metadata"]["name"], runtime["kind"])
    assert "trainer" not in train["spec"]  # with it PET_* would be set
    nodes = runtime["spec"].get("mlPolicy", {}).get("numNodes")
    return _replicated(train["metadata"], runtime["spec"]["template"]["spec"], nodes)


def uid_of(manifest: Object) -> str:
    """Of the object, which the server gives; another one for each that is made."""
    return str(manifest["metadata"].get("uid", "8c1f3a52-5d0e-4a63-9d5b-0f6e2f0f7a11"))


def _replicated(metadata: Object, spec: Object, nodes: int | None) -> Iterator[Pod]:
    name = metadata["name"]
    (replicated,) = spec["replicatedJobs"]
    assert replicated.get("replicas", 1) == 1
    job_spec = dict(replicated["template"]["spec"])
    if nodes is not None:
        job_spec["completions"] = job_spec["parallelism"] = nodes
    subdomain = spec.get("network", {}).get("subdomain") or name
    labels = {"jobset.sigs.k8s.io/jobset-uid": uid_of({"metadata": metadata})}
    return _indexed(f"{name}-{replicated['name']}-0", job_spec, subdomain, labels)


def _indexed(name: str, spec: Object, subdomain: str, owners: Mapping[str, str]) -> Iterator[Pod]:
    """The pods of an Indexed Job."""
    assert spec.get("completionMode", "Indexed") == "Indexed"  # JobSet's default
    assert spec["completions"] == spec["parallelism"]
    template = spec["template"]
    meta = template.get("metadata", {})
    for index in range(spec["completions"]):
        place = {COMPLETION_INDEX: str(index)}
        labels = {"batch.kubernetes.io/job-name": name, "job-name": name, **place, **owners}
        hostname = f"{name}-{index}"
        yield Pod(
            hostname,
            template,
            (f"{hostname}.{subdomain}",),
            labels | meta.get("labels", {}),
            meta.get("annotations", {}) | place,
            {"JOB_COMPLETION_INDEX": str(index)},
        )
