"""What an API server or an operator's webhook refuses beyond its schemas.

From Kubernetes' pkg/apis/{core,batch}/validation as the API reference tells it, and from the rules
(CEL) of the CRDs that hold when an object is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from k8s.enums import enum_faults
from k8s.objects import PodTemplate, jobs, pod_templates, quantity, walk
from k8s.schemas import faults

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123
FIRST_A_LETTER = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1035
SUBDOMAIN = rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*"
WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
QUALIFIED = rf"({SUBDOMAIN}/)?{WORD}"
CONFIG_KEY = r"(?!\.\.?$)[-._a-zA-Z0-9]{1,253}"
ANNOTATIONS_BYTES = 256 * 1024
CONFIG_MAP_BYTES = 1024 * 1024
LONGEST_SUFFIX = len("-worker-127")
"""What a controller appends to an object's name must fit into 63 characters with it."""
NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")
STARTS_JOBS = ("PyTorchJob", "TrainJob", "JobSet", "Job")


def every_fault(manifest: dict[str, Any], release: str) -> list[str]:
    """What is wrong with `manifest` by the schemas of a Kubernetes release (one of `releases()`),
    by the words that the API knows, and by its further rules; these only where the schemas hold."""
    return faults(manifest, release) or [*enum_faults(manifest), *rule_faults(manifest)]


def rule_faults(manifest: dict[str, Any]) -> list[str]:
    """What of `manifest` a server would refuse or an operator could not run, as "path: ..."."""
    found = [*_names(manifest), *_metadata(manifest), *_data(manifest), *_queues(manifest)]
    for template in pod_templates(manifest):
        found += [f"{template.path}.{fault}" for rule in POD_RULES for fault in rule(template)]
    for path, job in jobs(manifest):
        found += [f"{path}.{fault}" for fault in _job(job)]
    if manifest["kind"] == "PyTorchJob":
        found += _pytorchjob(manifest["spec"])
    if manifest["kind"] == "JobSet":
        found += _jobset(manifest)
    return found


def _names(manifest: dict[str, Any]) -> Iterator[str]:
    name, kind = manifest["metadata"].get("name", ""), manifest["kind"]
    pattern = FIRST_A_LETTER if kind in {"Service", *STARTS_JOBS} else SUBDOMAIN
    if not re.fullmatch(pattern, name) and not manifest["apiVersion"].startswith("rbac."):
        yield f"metadata.name: {name!r} is no name"
    if kind in STARTS_JOBS and len(name) + LONGEST_SUFFIX > 63:
        yield f"metadata.name: {name!r} leaves no room for -worker-127"
    namespace = manifest["metadata"].get("namespace", "default")
    if not re.fullmatch(LABEL, namespace):
        yield f"metadata.namespace: {namespace!r} is no name"


def _metadata(manifest: dict[str, Any]) -> Iterator[str]:
    for path, value in walk(manifest):
        kind = path.rpartition(".")[2]
        if kind not in {"labels", "annotations", "matchLabels", "nodeSelector", "nodeLabels"}:
            continue
        for key, text in value.items() if isinstance(value, dict) else ():
            if not re.fullmatch(QUALIFIED, key):
                yield f"{path}.{key}: no name of a label or annotation"
            if kind != "annotations" and text and not re.fullmatch(WORD, str(text)):
                yield f"{path}.{key}: {text!r} is no label's value"
        if kind == "annotations" and len(str(value).encode()) > ANNOTATIONS_BYTES:
            yield f"{path}: more than 256 KiB"


def _data(manifest: dict[str, Any]) -> Iterator[str]:
    data = manifest.get("data", {}) if manifest["kind"] == "ConfigMap" else {}
    for key in data:
        if not re.fullmatch(CONFIG_KEY, key):
            yield f"data.{key}: no key of a ConfigMap"
    if sum(len(key) + len(text.encode()) for key, text in data.items()) > CONFIG_MAP_BYTES:
        yield "data: more than 1 MiB"


def _queues(manifest: dict[str, Any]) -> Iterator[str]:
    """Kueue's documentation: one podset topology at most; and no second admission beside it."""
    for path, value in walk(manifest):
        if path.endswith("annotations"):
            topologies = [key for key in value if key.startswith("kueue.x-k8s.io/podset-")]
            if len(topologies) > 1:
                yield f"{path}: {topologies}"
    gangs = {"schedulingPolicy", "podGroupPolicy", "schedulerName"}
    others = [path for path, _ in walk(manifest) if path.rpartition(".")[2] in gangs]
    if "kueue.x-k8s.io/queue-name" in manifest["metadata"].get("labels", {}) and others:
        yield f"metadata.labels: Kueue admits this, and so does {others[0]}"


# Pods.


def _containers(template: PodTemplate) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"spec.{kind}[{n}]", container)
        for kind in ("containers", "initContainers")
        for n, container in enumerate(template.spec.get(kind, ()))
    ]


def _container_names(template: PodTemplate) -> Iterator[str]:
    for path, container in _containers(template):
        if not re.fullmatch(LABEL, container["name"]):
            yield f"{path}.name: {container['name']!r}"
        if not container.get("image", "").strip():
            yield f"{path}.image: none"
        if len(container.get("image", "").split()) > 1:
            yield f"{path}.image: white space"


def _environment(template: PodTemplate) -> Iterator[str]:
    for path, container in _containers(template):
        names = [variable["name"] for variable in container.get("env", ())]
        if len(set(names)) < len(names):  # server-side apply refuses it
            yield f"{path}.env: a name twice"
        for variable in container.get("env", ()):
            # Since 1.34 any printable ASCII but "="; older servers want an identifier.
            if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", variable["name"]):
                yield f"{path}.env: {variable['name']!r} is no name"
            if ("value" in variable) == ("valueFrom" in variable):
                yield f"{path}.env.{variable['name']}: exactly one of value and valueFrom"
            if "\0" in variable.get("value", ""):
                yield f"{path}.env.{variable['name']}: no process can have a NUL in a variable"


def _volumes(template: PodTemplate) -> Iterator[str]:
    names = [volume["name"] for volume in template.spec.get("volumes", ())]
    for volume in template.spec.get("volumes", ()):
        if not re.fullmatch(LABEL, volume["name"]):
            yield f"spec.volumes: {volume['name']!r} is no name"
        if len(volume) != 2:
            yield f"spec.volumes.{volume['name']}: exactly one source"
    for path, container in _containers(template):
        mounts = container.get("volumeMounts", [])
        for mount in mounts:
            if mount["name"] not in names:
                yield f"{path}.volumeMounts: no volume {mount['name']!r}"
            if ":" in mount["mountPath"] or not mount["mountPath"].startswith("/"):
                yield f"{path}.volumeMounts: {mount['mountPath']!r} is no absolute path"
        if len({mount["mountPath"] for mount in mounts}) != len(mounts):
            yield f"{path}.volumeMounts: a path twice"
    mounted = {m["name"] for _, c in _containers(template) for m in c.get("volumeMounts", ())}
    for name in sorted(set(names) - mounted):
        yield f"spec.volumes.{name}: nobody mounts it"


def _resources(template: PodTemplate) -> Iterator[str]:
    for path, container in _containers(template):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in sorted({*requests, *limits}):
            amounts = [quantity(of[name]) for of in (requests, limits) if name in of]
            if None in amounts or any(amount is not None and amount < 0 for amount in amounts):
                yield f"{path}.resources: {name} has no quantity"
            elif len(amounts) == 2 and amounts[0] > amounts[1]:  # type: ignore[operator]
                yield f"{path}.resources: {name}: more requested than allowed"
            elif name not in NATIVE and not _whole(amounts, name in requests, name in limits):
                yield f"{path}.resources: {name}: an extended resource is whole, request = limit"


def _whole(amounts: list[Any], *given: bool) -> bool:
    return all(given) and amounts[0] == amounts[1] and amounts[0] == int(amounts[0])


def _ports(template: PodTemplate) -> Iterator[str]:
    for path, container in _containers(template):
        for port in container.get("ports", ()):
            number = port["containerPort"]
            if not 0 < number < 65536 or port.get("hostPort", number) != number:
                yield f"{path}.ports: {number}"
            # IANA_SVC_NAME
            if not re.fullmatch(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", port["name"]):
                yield f"{path}.ports: {port['name']!r} is no port's name"


def _users(template: PodTemplate) -> Iterator[str]:
    contexts = [template.spec, *(container for _, container in _containers(template))]
    for context in (owner.get("securityContext", {}) for owner in contexts):
        for key in ("runAsUser", "runAsGroup", "fsGroup"):
            if not 0 <= context.get(key, 0) < 2**31:
                yield f"spec: {key} {context[key]} is not in 0 to 2147483647"


def _placement(template: PodTemplate) -> Iterator[str]:
    for n, toleration in enumerate(template.spec.get("tolerations", ())):
        exists = toleration.get("operator", "Equal") == "Exists"
        if exists and toleration.get("value"):
            yield f"spec.tolerations[{n}]: Exists takes no value"
        if not exists and not toleration.get("key"):
            yield f"spec.tolerations[{n}]: Equal needs a key"
    for path, value in walk(template.spec.get("affinity", {})):
        if isinstance(value, dict) and not _values_fit(value):
            yield f"spec.affinity.{path}: values with In, NotIn, Gt and Lt, and none else"


def _values_fit(expression: dict[str, Any]) -> bool:
    alone = expression.get("operator") in {"Exists", "DoesNotExist"}
    return "operator" not in expression or alone != bool(expression.get("values"))


POD_RULES: tuple[Callable[[PodTemplate], Iterator[str]], ...] = (
    _container_names,
    _environment,
    _volumes,
    _resources,
    _ports,
    _users,
    _placement,
)


# Jobs.


def _job(job: dict[str, Any]) -> Iterator[str]:
    pod = job["template"]["spec"]
    if pod.get("restartPolicy") not in {"Never", "OnFailure"}:
        yield "template.spec.restartPolicy: Never or OnFailure for a Job"
    if job.get("completionMode") == "Indexed" and "completions" not in job:
        yield "completions: needed with Indexed"
    if "podFailurePolicy" in job:
        yield from _pod_failure_policy(job, pod)


def _pod_failure_policy(job: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    if pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy: needs restartPolicy Never"
    if job.get("podReplacementPolicy", "Failed") != "Failed":
        yield "podReplacementPolicy: Failed with podFailurePolicy"
    names = {container["name"] for container in pod["containers"]}
    for n, rule in enumerate(job["podFailurePolicy"]["rules"]):
        where = f"podFailurePolicy.rules[{n}]"
        if len({"onExitCodes", "onPodConditions"} & set(rule)) != 1:
            yield f"{where}: exactly one of onExitCodes and onPodConditions"
        codes = rule.get("onExitCodes", {"operator": "NotIn", "values": [0]})
        if codes.get("containerName", pod["containers"][0]["name"]) not in names:
            yield f"{where}: no container {codes['containerName']!r}"
        if codes["values"] != sorted(set(codes["values"])):
            yield f"{where}: values are in order, each once"
        if codes["operator"] == "In" and 0 in codes["values"]:
            yield f"{where}: 0 is no failure"


def _pytorchjob(spec: dict[str, Any]) -> Iterator[str]:
    """What the training-operator's webhook checks, and what its controller takes wrongly."""
    replicas = spec["pytorchReplicaSpecs"]
    if not set(replicas) <= {"Master", "Worker"}:
        yield "spec.pytorchReplicaSpecs: Master and Worker alone"
        return
    if replicas.get("Master", {"replicas": 1})["replicas"] != 1:
        yield "spec.pytorchReplicaSpecs.Master.replicas: 1"
    if replicas.get("Worker", {"replicas": 1})["replicas"] < 1:
        yield "spec.pytorchReplicaSpecs.Worker.replicas: at least 1"
    if ("elasticPolicy" in spec) == ("Master" in replicas):
        yield "spec: exactly one of elasticPolicy and a Master"
    if not re.fullmatch("[1-9][0-9]*", spec.get("nprocPerNode", "")):
        yield "spec.nprocPerNode: a number, as a string; `auto` becomes 1"
    for role, replica in replicas.items():
        container = replica["template"]["spec"]["containers"][0]
        if container["name"] != "pytorch":
            yield f"spec.pytorchReplicaSpecs.{role}: its first container is named pytorch"
        if "pytorchjob-port" not in {port["name"] for port in container.get("ports", ())}:
            yield f"spec.pytorchReplicaSpecs.{role}: a port named pytorchjob-port"


def _jobset(manifest: dict[str, Any]) -> Iterator[str]:
    """JobSet 0.12, its webhook: pods named NAME-JOB-N-INDEX-abcde, with 63 characters at most."""
    name = manifest["metadata"]["name"]
    for job in manifest["spec"]["replicatedJobs"]:
        last_pod = job["template"]["spec"].get("completions", 1) - 1
        pod = f"{name}-{job['name']}-{job['replicas'] - 1}-{last_pod}-abcde"
        if len(pod) > 63:
            yield f"metadata.name: {pod} has {len(pod)} characters"
        if not re.fullmatch(FIRST_A_LETTER, job["name"]):
            yield f"spec.replicatedJobs: {job['name']!r} is no name"
