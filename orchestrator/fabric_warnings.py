"""What is doubtful in pods with a fabric, and no fault: the nodes may be as the job needs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.fabric_pods import FABRIC, with_fabric
from orchestrator.spec.base import KeyPath, Problem

if TYPE_CHECKING:
    from orchestrator.fabrics import Pods, Preset
    from orchestrator.spec import JobSpec
    from orchestrator.spec.kubernetes import Kubernetes

GPU_RESOURCE: KeyPath = ("kubernetes", "gpu_resource")
NVIDIA = "nvidia.com/"  # how names of resources and labels of NVIDIA's device plugin begin


def pods_warnings(spec: JobSpec, preset: Preset | None, device: str) -> Iterator[Problem]:
    """Yield what is doubtful, with paths from the job's root.

    Args:
        preset: the fabric that is used; None without one.
        device: torch's name of what the ranks compute on.
    """
    pods = preset.kubernetes if preset is not None else None
    yield from _user_warnings(spec.kubernetes, pods)
    if spec.resources.gpus_per_node:
        yield from _gpu_warnings(spec, pods, device)
    if preset is not None:
        yield from _device_warnings(spec.kubernetes, preset)
        yield from _file_warnings(spec, preset)


def _gpu_warnings(spec: JobSpec, pods: Pods | None, device: str) -> Iterator[Problem]:
    """Names of NVIDIA's for devices of another vendor."""
    if device == "cuda" and (pods is None or pods.gpu_resource is None):
        return
    found, gpu_type = with_fabric(spec.kubernetes, pods), spec.resources.gpu_type
    if found.gpu_resource.startswith(NVIDIA):
        is_written = "gpu_resource" in spec.kubernetes.model_fields_set
        by = FABRIC if spec.network.fabric is not None else ("network", "backend")
        yield Problem(
            GPU_RESOURCE if is_written else by,
            f"pods ask for GPUs as {found.gpu_resource}, and the job computes on another vendor's",
            "write kubernetes.gpu_resource, as the device plugin of the nodes calls them",
            involves=(GPU_RESOURCE,),
        )
    if gpu_type is not None and found.gpu_type_label.startswith(NVIDIA):
        yield Problem(
            ("resources", "gpu_type"),
            f"pods go to nodes whose label {found.gpu_type_label} is {gpu_type}, and the job "
            "computes on another vendor's GPUs",
            "write kubernetes.gpu_type_label, as the nodes have it",
            involves=(("kubernetes", "gpu_type_label"),),
        )


def _device_warnings(given: Kubernetes, preset: Preset) -> Iterator[Problem]:
    """Cards of which the preset does not know how pods get them."""
    pods = preset.kubernetes
    has_devices = any("/" in name for name in given.extra_resources)
    if pods is None or pods.by_site is None or has_devices:
        return
    if not with_fabric(given, pods).host_network:
        yield Problem(
            FABRIC,
            f"in pods of the fabric {preset.name}: {pods.by_site}",
            "write kubernetes.extra_resources with the device, or kubernetes.host_network: true, "
            "as the site has it",
        )


def _file_warnings(spec: JobSpec, preset: Preset) -> Iterator[Problem]:
    """Files of the node that pods do not have: the fabric is used without them."""
    from orchestrator.fabrics import preset as whole  # late: few jobs name one

    for name, setting in whole(spec.network.fabric or preset.name).variables.items():
        is_given = name in spec.network.env or name in spec.env
        if setting.node_file and name not in preset.variables and not is_given:
            yield Problem(
                FABRIC,
                f"in pods {name} of the fabric {preset.name} is left out: no volume has "
                f"{setting.value} of the node ({setting.why})",
                f"mount its folder by kubernetes.volumes, or write network.env: {{{name}: ...}} "
                "with where the image has it",
            )


def _user_warnings(given: Kubernetes, pods: Pods | None) -> Iterator[Problem]:
    """A capability does not reach the trainer's user, which is no fault: the nodes may
    not limit locked memory, or the image's files may have the capability.

    A container has no ambient capabilities (kubernetes.io, "Linux capabilities"; capabilities(7)).
    """
    found = with_fabric(given, pods)
    if found.rdma and found.pod_security == "none" and found.run_as_user:
        yield Problem(
            ("kubernetes", "rdma") if given.rdma else FABRIC,
            f"IPC_LOCK, which pods get for RDMA, has no effect for user {found.run_as_user}: a "
            "node that limits locked memory limits theirs",
            "write kubernetes.run_as_user: 0, unless the nodes have no such limit",
            involves=(("kubernetes", "run_as_user"),),
        )
