"""What a job cannot have on a Kubernetes cluster, and what its user should know of it there.

Other than kubernetes_problems this rests on the target and on the profile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import quoted
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.kubernetes_paths import OWN_MOUNTS, collision, hides, normal_path

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.layers import ProfileLike

KUBERNETES_TARGETS = ("pytorchjob", "trainjob", "jobset", "job")
MAX_NAME = 63  # of a DNS label: names of pods' hosts and of Services
# Of a volume's mountPath, kubernetes.io API reference, VolumeMount: no colon.
RUNS_FOLDER = re.compile(r"/[^\x00-\x1f\x7f:]+")
RUNS: KeyPath = ("kubernetes", "runs")


class Place(Protocol):
    """What of a profile says where a run is; ClusterProfile has it."""

    @property
    def runs_root(self) -> str: ...
    @property
    def ssh(self) -> str | None: ...
    @property
    def workdir(self) -> str | None: ...


def target_problems(spec: JobSpec, profile: ProfileLike) -> Iterator[Problem]:
    """Yield what is wrong with the job on the profile's cluster, paths from the job's root; nothing
    for a target that is not Kubernetes."""
    if profile.target not in KUBERNETES_TARGETS:
        return
    yield from _refused_keys(spec)
    yield from _name_problems(spec, profile.target)
    yield from _runs_problems(spec, profile)
    yield from _mount_problems(spec, profile.runs_root)
    if profile.target == "trainjob" and spec.kubernetes.keep_finished is not None:
        yield Problem(
            ("kubernetes", "keep_finished"),
            "a TrainJob has none, and one of its JobSet would let the run begin anew for ever",
            "remove it; `orchestrate cancel` and kubectl delete remove the object",
            "key",
        )


def _refused_keys(spec: JobSpec) -> Iterator[Problem]:
    if spec.sweep is not None:
        yield Problem(
            ("sweep",),
            "a sweep is an array job of Slurm's or of this machine, and Kubernetes has none",
            "remove it, and submit a run for each value, with --set name=... and --set KEY=VALUE",
            "key",
        )
    if spec.after:
        yield Problem(
            ("after",),
            "Kubernetes lets no job wait for another",
            "remove it, and submit this run when the other has ended: orchestrate wait RUN",
            "key",
        )


def longest_suffix(target: str, num_nodes: int) -> str:
    """Return the longest ending that a controller appends to the run's name.

    Args:
        target: one of KUBERNETES_TARGETS.
        num_nodes: of the run, the most for a range.
    """
    last = num_nodes - 1
    if target == "pytorchjob":
        # Beside a Master workers count from 0; without one (a range of nodes) there is one more.
        return f"-worker-{last}"
    if target == "job":
        return f"-{last}"
    # JobSet's webhook wants room for the random ending of a pod's name too, GenPodName and five
    # letters in kubernetes-sigs/jobset pkg/webhooks/jobset_webhook.go.
    return f"-node-0-{last}-abcde"


def _name_problems(spec: JobSpec, target: str) -> Iterator[Problem]:
    room = MAX_NAME - len(longest_suffix(target, spec.resources.max_nodes))
    if len(spec.name) > room:
        yield Problem(
            ("name",),
            f"{len(spec.name)} characters, and a {target} with {spec.resources.max_nodes} nodes "
            f"leaves room for {room}: the names of its pods end with "
            f"{longest_suffix(target, spec.resources.max_nodes)} and have {MAX_NAME} at most",
            f"shorten it to {room} characters",
            involves=(("resources", "nodes"),),
        )


def _runs_problems(spec: JobSpec, profile: ProfileLike) -> Iterator[Problem]:
    runs = spec.kubernetes.runs
    if not any((runs.pvc, runs.host_path, runs.nfs, runs.csi, runs.empty_dir)):
        yield Problem(
            RUNS,
            f"no volume for the run folders at {profile.runs_root}, where checkpoints are kept",
            "write `runs: {pvc: NAME}` below kubernetes, a claim that all nodes can write to "
            "(ReadWriteMany)",
            "key",
        )
    if runs.empty_dir and spec.resources.max_nodes > 1:
        yield Problem(
            (*RUNS, "empty_dir"),
            f"each of {spec.resources.max_nodes} pods would have a run folder of its own",
            "write a volume that all nodes share, such as pvc: NAME",
            "key",
            involves=(("resources", "nodes"),),
        )


def _mount_problems(spec: JobSpec, runs_root: str) -> Iterator[Problem]:
    root = normal_path(runs_root)
    for name, volume in spec.kubernetes.volumes.items():
        mount = normal_path(volume.mount or "/")
        if mount == root:
            message = f"{mount} is where the run folders are"
        elif hides(root, mount):
            message = f"{mount} lies inside of {root}, where the run folders are"
        else:
            continue
        fix = "mount it somewhere else"
        yield Problem(("kubernetes", "volumes", name, "mount"), message, fix)


def profile_problems(profile: Place) -> Iterator[Problem]:
    """Yield what no pod can follow in a profile with a Kubernetes target, paths from there."""
    if not RUNS_FOLDER.fullmatch(profile.runs_root) or collision(profile.runs_root):
        yield Problem(
            ("runs_root",),
            f"{quoted(profile.runs_root)} cannot be mounted in a pod: an absolute path without a "
            f"colon, which hides none of {', '.join(OWN_MOUNTS)}",
            "write it like runs_root: /runs; the volume kubernetes.runs is mounted there",
        )
    if profile.ssh is not None:
        message = "a Kubernetes cluster is reached by its API server, from here"
        yield Problem(("ssh",), message, "remove it, and see kubernetes.context", "key")
    if profile.workdir is not None:
        message = "a Kubernetes cluster has this as kubernetes.workdir"
        yield Problem(("workdir",), message, "write it below kubernetes", "key")


def target_notes(spec: JobSpec, profile: ProfileLike) -> Iterator[str]:
    """Yield what the user should know of a job without faults on the profile's cluster."""
    if profile.target not in KUBERNETES_TARGETS:
        return
    kubernetes, num_nodes = spec.kubernetes, spec.resources.max_nodes
    if kubernetes.runs.empty_dir:
        yield (
            "kubernetes.runs is an empty_dir: the checkpoints are gone with the pod, and a new "
            "attempt begins anew"
        )
    if kubernetes.runs.host_path is not None and num_nodes > 1:
        yield (
            f"kubernetes.runs is the folder {kubernetes.runs.host_path} of each node: it must be "
            "the same shared file system on all of them"
        )
    has_workers = isinstance(spec.resources.nodes, int) and num_nodes > 1
    if profile.target == "pytorchjob" and has_workers and kubernetes.pod_security == "restricted":
        yield (
            "the training operator gives the workers an init container without a security context: "
            "a namespace that enforces Pod Security restricted refuses them, and the job stands "
            "still. Use one that enforces baseline, or the target jobset, trainjob or job"
        )
