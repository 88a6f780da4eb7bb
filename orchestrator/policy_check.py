"""What a job has that a policy does not allow, each at the place that gave the value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import Fault, FaultsError, quoted
from orchestrator.policy import Policy, read_policy
from orchestrator.profiles import ClusterProfile
from orchestrator.source import Document
from orchestrator.spec import JobSpec, ResolvedJob
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.kubernetes_target import KUBERNETES_TARGETS
from orchestrator.units import format_duration

NODES: KeyPath = ("resources", "nodes")
GPUS: KeyPath = ("resources", "gpus_per_node")
TIME_LIMIT: KeyPath = ("resources", "time_limit")
LABELS: KeyPath = ("kubernetes", "labels")
IMAGE: KeyPath = ("kubernetes", "image")
NAMESPACE: KeyPath = ("kubernetes", "namespace")
PARTITION: KeyPath = ("slurm", "partition")


class _Breach(NamedTuple):
    """What is not allowed.

    Args:
        rule: key of the policy.
        path: of the value at fault, from the job's root.
        given: the value, in words.
        fix: what to do.
    """

    rule: str
    path: KeyPath
    given: str
    fix: str


def check_policies(
    files: Iterable[tuple[Path, str]], job: ResolvedJob, profile: ClusterProfile
) -> None:
    """Raise FaultsError with all that any of the policies does not allow.

    Args:
        files: each with what to call it in messages.
        job: judged as it holds in the end.
        profile: the cluster.

    Raises:
        UserError: a policy cannot be read; FaultsError if it is faulty itself.
    """
    policies = [read_policy(path, name) for path, name in files]
    faults = [
        fault
        for policy, document in policies
        for fault in policy_faults(policy, document, job, profile)
    ]
    if faults:
        raise FaultsError(dict.fromkeys(faults))


def policy_faults(
    policy: Policy, document: Document, job: ResolvedJob, profile: ClusterProfile
) -> Iterator[Fault]:
    """Yield a fault for each thing that the policy does not allow.

    Args:
        policy: with the document that it was read from.
        document: for the file and line of each rule.
        job: judged as it holds in the end; each fault points to the layer that gave the value.
        profile: the cluster.
    """
    if policy.allowed_targets is not None and profile.target not in policy.allowed_targets:
        yield _target_fault(policy.allowed_targets, document, profile)
    for breach in _breaches(policy, job.spec, profile.target):
        message = f"{breach.given} ({_rule(document, breach.rule)})"
        yield job.fault(Problem(breach.path, message, breach.fix))


def _rule(document: Document, rule: str) -> str:
    """Where a rule stands."""
    place = document.position((rule,))
    line = f":{place.line}" if place else ""
    return f"policy {document.file}{line}, {rule}"


def _target_fault(allowed: Sequence[str], document: Document, profile: ClusterProfile) -> Fault:
    message = f"the target {profile.target} is not allowed ({_rule(document, 'allowed_targets')})"
    fix = f"choose a cluster with the target {' or '.join(allowed) or '(none is allowed)'}"
    if profile.document is None:
        return Fault(profile.file, None, "target", message, fix)
    path = ("clusters", profile.name, "target")
    return profile.document.fault(path, message, fix, at="value")


def _breaches(policy: Policy, spec: JobSpec, target: str) -> Iterator[_Breach]:
    yield from _size(policy, spec)
    yield from _time(policy, spec)
    yield from _image(policy, spec, target)
    yield from _queues(policy, spec, target)
    if target in KUBERNETES_TARGETS:
        yield from _labels(policy, spec)
        yield from _namespace(policy, spec)


def _size(policy: Policy, spec: JobSpec) -> Iterator[_Breach]:
    nodes, each = spec.resources.max_nodes, spec.resources.gpus_per_node
    if policy.max_nodes is not None and nodes > policy.max_nodes:
        given, fix = f"{nodes} nodes are more than {policy.max_nodes}", "ask for fewer"
        yield _Breach("max_nodes", NODES, given, fix)
    if policy.max_gpus is not None and nodes * each > policy.max_gpus:
        yield _Breach(
            "max_gpus",
            GPUS,
            f"{nodes} x {each} GPUs are more than {policy.max_gpus}",
            f"ask for {policy.max_gpus} GPUs at most, over all nodes",
        )


def _time(policy: Policy, spec: JobSpec) -> Iterator[_Breach]:
    limit, longest = spec.resources.time_limit, policy.max_time_limit
    if limit is None and longest is not None:
        most = format_duration(longest)
        fix = f"add resources.time_limit, at most {most}"
        yield _Breach("max_time_limit", TIME_LIMIT, "no time limit is given", fix)
    elif limit is None and policy.require_time_limit:
        fix = "add resources.time_limit, such as 4h"
        yield _Breach("require_time_limit", TIME_LIMIT, "no time limit is given", fix)
    elif limit is not None and longest is not None and limit > longest:
        most = format_duration(longest)
        given = f"{format_duration(limit)} are more than {most}"
        yield _Breach("max_time_limit", TIME_LIMIT, given, f"write {most} or less")


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _one_of(globs: Sequence[str]) -> str:
    return f"allowed is {' or '.join(globs)}" if globs else "none is allowed"


def _image(policy: Policy, spec: JobSpec, target: str) -> Iterator[_Breach]:
    globs = policy.allowed_images
    if globs is None:
        return
    for path, image in _images_of(spec, target):
        if not _matches(image, globs):
            given = f"the image {quoted(image, 80)} is not allowed"
            yield _Breach("allowed_images", path, given, _one_of(globs))


def _images_of(spec: JobSpec, target: str) -> Iterator[tuple[KeyPath, str]]:
    if target == "slurm" and spec.slurm.container is not None:
        yield ("slurm", "container", "image"), spec.slurm.container.image
    if target in KUBERNETES_TARGETS:
        yield IMAGE, spec.kubernetes.image_name
        for name, sidecar in spec.kubernetes.sidecars.items():
            yield ("kubernetes", "sidecars", name, "image"), sidecar.image


def _queues(policy: Policy, spec: JobSpec, target: str) -> Iterator[_Breach]:
    globs = policy.allowed_queues
    if globs is None or target == "local":
        return
    path, queues = _queues_of(spec, target)
    if not queues:
        fix = f"add {'.'.join(map(str, path))}; {_one_of(globs)}"
        yield _Breach("allowed_queues", path, "no queue is given", fix)
    for queue in queues:
        if not _matches(queue, globs):
            given = f"the queue {quoted(queue, 63)} is not allowed"
            yield _Breach("allowed_queues", path, given, _one_of(globs))


def _queues_of(spec: JobSpec, target: str) -> tuple[KeyPath, list[str]]:
    """Where the job's queue is given, and what it is; sbatch takes several partitions."""
    if target not in KUBERNETES_TARGETS:
        partitions = (spec.slurm.partition or "").split(",")
        return PARTITION, [name.strip() for name in partitions if name.strip()]
    if spec.kubernetes.volcano is not None:
        queue = spec.kubernetes.volcano.queue
        return ("kubernetes", "volcano", "queue"), [queue] if queue is not None else []
    kueue = spec.kubernetes.kueue
    queue = kueue.queue if kueue is not None else None
    return ("kubernetes", "kueue", "queue"), [queue] if queue is not None else []


def _labels(policy: Policy, spec: JobSpec) -> Iterator[_Breach]:
    for name, glob in policy.required_labels.items():
        value = spec.kubernetes.labels.get(name)
        path = (*LABELS, name)
        if value is None:
            fix = f"add it below kubernetes.labels{'' if glob == '*' else f', as {glob}'}"
            yield _Breach("required_labels", path, f"the label {name} is not given", fix)
        elif not fnmatchcase(value, glob):
            given = f"{quoted(value, 63)} is no {glob}"
            yield _Breach("required_labels", path, given, f"write a value like {glob}")


def _namespace(policy: Policy, spec: JobSpec) -> Iterator[_Breach]:
    globs, namespace = policy.allowed_namespaces, spec.kubernetes.namespace
    if globs is None:
        return
    if namespace is None:
        given = "no namespace is given, and that of the kubeconfig may be any"
        fix = f"add kubernetes.namespace; {_one_of(globs)}"
        yield _Breach("allowed_namespaces", NAMESPACE, given, fix)
    elif not _matches(namespace, globs):
        given = f"the namespace {namespace} is not allowed"
        yield _Breach("allowed_namespaces", NAMESPACE, given, _one_of(globs))
