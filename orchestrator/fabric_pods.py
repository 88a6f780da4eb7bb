"""What a fabric needs of pods on Kubernetes, together with what the site says of them.

Where the site says something itself, that holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.kubernetes_paths import hides, normal_path

if TYPE_CHECKING:
    from orchestrator.fabrics import Pods, Preset
    from orchestrator.spec.kubernetes import Kubernetes

FABRIC: KeyPath = ("network", "fabric")
SIDECARS: KeyPath = ("kubernetes", "sidecars")


def with_fabric(kubernetes: Kubernetes, pods: Pods | None) -> Kubernetes:
    """Return a site's section with what its fabric needs of the pods' own keys.

    Args:
        pods: what the fabric needs; None where it needs nothing, or none is used.
    """
    if pods is None:
        return kubernetes
    changes: dict[str, Any] = {
        name: True
        for name in ("rdma", "host_network")
        if getattr(pods, name) and name not in kubernetes.model_fields_set
    }
    if pods.gpu_resource is not None and "gpu_resource" not in kubernetes.model_fields_set:
        changes["gpu_resource"] = pods.gpu_resource
    # A device that the site asks for by another name is the one that its nodes have.
    if not any("/" in name for name in kubernetes.extra_resources):
        changes["extra_resources"] = {**pods.extra_resources, **kubernetes.extra_resources}
    return kubernetes.model_copy(update=changes)


def for_pods(preset: Preset, kubernetes: Kubernetes) -> Preset:
    """Return a preset without what names what the site's pods do not have of the node."""
    has_network = with_fabric(kubernetes, preset.kubernetes).host_network
    kept = {
        name: own
        for name, own in preset.variables.items()
        if (has_network or not own.of_node)
        and (not own.node_file or _has_file(kubernetes, preset.kubernetes, own.value))
    }
    return preset.model_copy(update={"variables": kept})


def pods_problems(kubernetes: Kubernetes, preset: Preset) -> Iterator[Problem]:
    """Yield what the site does not give or allow of what the fabric needs, paths from the job's
    root."""
    if preset.kubernetes is None:
        return
    yield from _sidecar_problems(kubernetes, preset.name, preset.kubernetes)
    yield from _mount_problems(kubernetes, preset.name, preset.kubernetes)
    level = kubernetes.pod_security
    needs = list(_needs(with_fabric(kubernetes, preset.kubernetes), kubernetes, preset.kubernetes))
    if level != "none" and needs:
        yield Problem(
            FABRIC,
            f"in pods the fabric {preset.name} needs {', '.join(needs)}, and Pod Security's level "
            f"{level} (kubernetes.pod_security) does not allow that",
            "write kubernetes.pod_security: none if the namespace allows that, or choose another "
            "fabric",
        )


def _has_file(kubernetes: Kubernetes, pods: Pods | None, path: str) -> bool:
    """Whether a volume of the pods is mounted where a file of the node is looked for."""
    mounts = [volume.mount for volume in kubernetes.volumes.values() if volume.mount is not None]
    mounts += pods.mounts.values() if pods is not None else ()
    return any(hides(normal_path(mount), normal_path(path)) for mount in mounts)


def _sidecar_problems(kubernetes: Kubernetes, fabric: str, pods: Pods) -> Iterator[Problem]:
    for sidecar in pods.sidecars:
        if sidecar.name not in kubernetes.sidecars:
            yield Problem(
                FABRIC,
                f"in pods the fabric {fabric} needs the container {sidecar.name}, and "
                f"kubernetes.sidecars.{sidecar.name} gives no image for it",
                f"write sidecars: {{{sidecar.name}: {{image: ...}}}} below kubernetes, with the "
                "release that goes with the nodes' libraries",
            )


def _mount_problems(kubernetes: Kubernetes, fabric: str, pods: Pods) -> Iterator[Problem]:
    """The site's own volumes in the place of the fabric's."""
    mounts = {normal_path(mount): name for name, mount in pods.mounts.items()}
    for name, volume in kubernetes.volumes.items():
        own = normal_path(volume.mount or "/")
        for mount, what in mounts.items():
            if hides(own, mount):
                yield Problem(
                    ("kubernetes", "volumes", name, "mount"),
                    f"{own} takes the place of {mount}, where the fabric {fabric} has "
                    f"{pods.volumes[what].path} of the node",
                    "remove the volume, or mount it somewhere else",
                    involves=(FABRIC,),
                )


def _needs(found: Kubernetes, given: Kubernetes, pods: Pods) -> Iterator[str]:
    """What only pods without a level of Pod Security may have; what the site wrote itself is judged
    where it wrote it."""
    if found.rdma and not given.rdma:
        yield "IPC_LOCK"
    if found.host_network and not given.host_network:
        yield "the node's network"
    if pods.volumes:
        yield "folders of the node"
    for sidecar in pods.sidecars:
        yield f"{sidecar.name} with {' and '.join(sidecar.capabilities) or 'the user root'}"
