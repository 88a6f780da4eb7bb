"""The volumes of a pod: configuration, run folder, memory, those that the site names, and the
fabric's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.plan import LaunchPlan
from orchestrator.spec.kubernetes import Volume

if TYPE_CHECKING:
    from orchestrator.fabrics import Pods


class PodVolume(NamedTuple):
    """A volume and where it is mounted.

    Args:
        name: of the volume, within the pod.
        mount: folder in the trainer's container; None where that has none of it.
        kind: field of core/v1 Volume.
        source: what that field holds.
        read_only: whether the pod may not write to it.
        comment: why it is there; empty where the name says it.
    """

    name: str
    mount: str | None
    kind: str
    source: dict[str, Any]
    read_only: bool = False
    comment: str = ""


def volumes(plan: LaunchPlan) -> list[PodVolume]:
    """Return the volumes of each pod: the run's own, then those of the site by name."""
    kubernetes = plan.kubernetes
    return [
        _config(plan.name),
        _mounted("orchestrate-runs", plan.runs_root, kubernetes.runs),
        _shm(kubernetes.shm_size),
        PodVolume("orchestrate-tmp", "/tmp", "emptyDir", {}),
        *(_mounted(name, v.mount or "", v) for name, v in sorted(kubernetes.volumes.items())),
        *_fabric_volumes(plan.network.pods),
    ]


def fabric_volume(name: str) -> str:
    """Return the name in the pod of a volume of the fabric's."""
    return f"orchestrate-fabric-{name}"


def _fabric_volumes(pods: Pods | None) -> Iterator[PodVolume]:
    """Folders of the node with what the fabric has there."""
    if pods is None:
        return
    for name, folder in sorted(pods.volumes.items()):
        kind = "DirectoryOrCreate" if folder.make else "Directory"
        source = {"path": folder.path, "type": kind}
        yield PodVolume(fabric_volume(name), pods.mounts.get(name), "hostPath", source)


def _config(name: str) -> PodVolume:
    return PodVolume("orchestrate-config", "/orchestrate", "configMap", {"name": name}, True)


def _shm(size_bytes: int) -> PodVolume:
    return PodVolume(
        *("orchestrate-shm", "/dev/shm", "emptyDir"),
        {"medium": "Memory", "sizeLimit": quantity(size_bytes)},
        comment="A container has 64 MiB there otherwise, too little for NCCL and data loaders.",
    )


def _mounted(name: str, mount: str, volume: Volume) -> PodVolume:
    kind, source = _source(volume)
    return PodVolume(name, mount, kind, source, volume.read_only)


def _source(volume: Volume) -> tuple[str, dict[str, Any]]:
    """The field of core/v1 Volume and its contents."""
    if volume.pvc is not None:
        return "persistentVolumeClaim", {"claimName": volume.pvc}
    if volume.host_path is not None:
        # Refused where there is none, rather than made for root alone.
        return "hostPath", {"path": volume.host_path, "type": "Directory"}
    if volume.nfs is not None:
        server, _, path = volume.nfs.partition(":/")
        return "nfs", {"server": server, "path": f"/{path}"}
    if volume.csi is not None:
        return "csi", _csi(volume)
    if volume.secret is not None:
        return "secret", {"secretName": volume.secret}
    if volume.config_map is not None:
        return "configMap", {"name": volume.config_map}
    return "emptyDir", {}


def _csi(volume: Volume) -> dict[str, Any]:
    source: dict[str, Any] = {"driver": volume.csi, "readOnly": volume.read_only}
    if volume.csi_attributes:
        source["volumeAttributes"] = dict(sorted(volume.csi_attributes.items()))
    if volume.csi_secret is not None:
        source["nodePublishSecretRef"] = {"name": volume.csi_secret}
    return source


def quantity(size_bytes: int) -> str:
    """Return bytes as a quantity of Kubernetes, exactly, in the largest unit that is whole."""
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size_bytes % 2**power == 0:
            return f"{size_bytes >> power}{unit}"
    return str(size_bytes)
