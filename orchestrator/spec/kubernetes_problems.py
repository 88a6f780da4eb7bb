"""What does not go together in the section `kubernetes`, whatever the target.

Levels of Pod Security: kubernetes.io, "Pod Security Standards".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.kubernetes_paths import OWN_MOUNTS, collision, normal_path
from orchestrator.spec.kubernetes_scheduling import scheduling_problems
from orchestrator.units import format_size

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.kubernetes import Kubernetes, Volume

SOURCES = ("pvc", "host_path", "nfs", "csi", "secret", "config_map", "empty_dir")
# kubernetes.io, "Annotations"; the launcher's own, of some 200 bytes, are of no account.
MAX_ANNOTATIONS_BYTES = 255 * 1024


def kubernetes_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong, with paths from the job's root."""
    yield from (p.under(("kubernetes",)) for p in _own_problems(spec.kubernetes))
    yield from _gpu_type_problems(spec)
    yield from _memory_problems(spec)
    yield from _variable_problems(spec)


def _own_problems(kubernetes: Kubernetes) -> Iterator[Problem]:
    yield from scheduling_problems(kubernetes)
    yield from _runs_problems(kubernetes.runs)
    yield from _volumes_problems(kubernetes)
    yield from _security_problems(kubernetes)
    annotations = sum(len((k + v).encode()) for k, v in kubernetes.annotations.items())
    if annotations > MAX_ANNOTATIONS_BYTES:
        message = f"{annotations} bytes, and an object may have 256 KiB of them"
        yield Problem(("annotations",), message, "put long texts in a file on a volume")
    if kubernetes.gpu_resource in kubernetes.extra_resources:
        yield Problem(
            ("extra_resources", kubernetes.gpu_resource),
            f"GPUs are asked for as {kubernetes.gpu_resource} by resources.gpus_per_node",
            "remove it",
            "key",
            involves=(("gpu_resource",),),
        )


def _runs_problems(runs: Volume) -> Iterator[Problem]:
    path: KeyPath = ("runs",)
    yield from (p.under(path) for p in _source_problems(runs, required=False))
    if runs.mount is not None:
        yield Problem(
            (*path, "mount"), "it is mounted at the profile's runs_root", "remove it", "key"
        )
    read_only = [name for name in ("secret", "config_map") if getattr(runs, name) is not None]
    if runs.read_only:
        read_only.append("read_only")
    for name in read_only:
        yield Problem(
            (*path, name),
            "nothing can be written there, and run folders are written to",
            "remove it, and write a volume such as pvc: NAME",
            "key",
        )


def _source_problems(volume: Volume, *, required: bool) -> Iterator[Problem]:
    """Yield what is wrong with where a volume comes from, paths from the volume."""
    given = [name for name in SOURCES if getattr(volume, name) not in (None, False)]
    if not given and required:
        yield Problem(
            (),
            "a volume without a source",
            f"add exactly one of {', '.join(SOURCES)}",
            "key",
            involves=tuple((name,) for name in SOURCES),
        )
    for name in given[1:]:
        yield Problem(
            (name,),
            f"{given[0]} is given too, and a volume comes from one place",
            f"remove one of them, or write {given[0]}: null over what another layer gives",
            "key",
            involves=((given[0],),),
        )
    if volume.host_path is not None and ".." in volume.host_path.split("/"):
        yield Problem(("host_path",), "a path with .. in it", "write it without")
    if volume.csi is None:
        for name in volume.given("csi_attributes", "csi_secret"):
            if getattr(volume, name):
                yield Problem((name,), "goes with csi only", "add csi, or remove it", "key")


def _volumes_problems(kubernetes: Kubernetes) -> Iterator[Problem]:
    taken: dict[str, KeyPath] = {}
    for name, volume in kubernetes.volumes.items():
        path: KeyPath = ("volumes", name)
        yield from (p.under(path) for p in _source_problems(volume, required=True))
        if volume.mount is None:
            here = ((*path, "mount"),)
            yield Problem(path, "a volume without a mount", "add mount: /PATH", "key", here)
            continue
        mount, place = normal_path(volume.mount), (*path, "mount")
        if mount in taken:
            other = taken[mount]
            yield Problem(
                place,
                f"{mount} is where volume {other[1]} is mounted",
                "choose another folder",
                involves=(other,),
            )
        taken[mount] = place
        own = collision(mount)
        if own is not None:
            message = f"{mount} would collide with {own}: {OWN_MOUNTS[own]}"
            yield Problem(place, message, "mount it somewhere else")


def _security_problems(kubernetes: Kubernetes) -> Iterator[Problem]:
    level = kubernetes.pod_security
    if level != "none":
        for path, what in _privileged(kubernetes):
            yield _not_at(level, path, what, "none")
    if level == "restricted":
        for path in _volumes_by(kubernetes, "nfs"):
            yield _not_at(level, path, "an NFS volume in a pod", "baseline")
        if kubernetes.run_as_user == 0:
            yield _not_at(level, ("run_as_user",), "root", "baseline")


def _not_at(level: str, path: KeyPath, what: str, needed: str) -> Problem:
    return Problem(
        path,
        f"Pod Security's level {level} does not allow {what}",
        f"write pod_security: {needed} if the namespace allows that, or remove it",
        "key",
        involves=(("pod_security",),),
    )


def _privileged(kubernetes: Kubernetes) -> Iterator[tuple[KeyPath, str]]:
    """What no level of Pod Security but the privileged one allows."""
    if kubernetes.rdma:
        yield ("rdma",), "IPC_LOCK, by which memory is registered with a network card"
    if kubernetes.host_network:
        yield ("host_network",), "the node's network"
    for path in _volumes_by(kubernetes, "host_path"):
        yield path, "a folder of the node"


def _volumes_by(kubernetes: Kubernetes, source: str) -> Iterator[KeyPath]:
    """Yield the paths at which a volume has such a source."""
    if getattr(kubernetes.runs, source) is not None:
        yield ("runs", source)
    for name, volume in kubernetes.volumes.items():
        if getattr(volume, source) is not None:
            yield ("volumes", name, source)


def _gpu_type_problems(spec: JobSpec) -> Iterator[Problem]:
    label = spec.kubernetes.gpu_type_label
    wanted, selected = spec.resources.gpu_type, spec.kubernetes.node_selector.get(label)
    if wanted is not None and selected not in (None, wanted):
        yield Problem(
            ("kubernetes", "node_selector", label),
            f"{selected}, and resources.gpu_type is {wanted}: no node has both",
            "keep one of the two",
            involves=(("resources", "gpu_type"), ("kubernetes", "gpu_type_label")),
        )


def _memory_problems(spec: JobSpec) -> Iterator[Problem]:
    memory, shared = spec.resources.memory, spec.kubernetes.shm_size
    if memory is not None and shared >= memory:
        yield Problem(
            ("kubernetes", "shm_size"),
            f"{format_size(shared)} of shared memory count toward resources.memory, which is "
            f"{format_size(memory)}: nothing would be left",
            "make shm_size smaller, or resources.memory larger",
            involves=(("resources", "memory"),),
        )


def _variable_problems(spec: JobSpec) -> Iterator[Problem]:
    for name in spec.kubernetes.secret_env:
        for path in (("env",), ("network", "env")):
            if name in (spec.env if path == ("env",) else spec.network.env):
                yield Problem(
                    ("kubernetes", "secret_env", name),
                    f"{name} is given in {'.'.join(path)} too",
                    "keep one of the two",
                    "key",
                    involves=((*path, name),),
                )
