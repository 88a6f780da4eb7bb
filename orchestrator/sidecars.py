"""Containers that the fabric needs beside the trainer in a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import UserError
from orchestrator.node_command import kept
from orchestrator.plan import LaunchPlan
from orchestrator.volumes import fabric_volume

if TYPE_CHECKING:
    from orchestrator.fabrics import Sidecar

ROOT_USER = 0


class PodSidecar(NamedTuple):
    """A side-car as the template writes it.

    Args:
        mounts: names of volumes of the pod, and where they are mounted.
        ready: what the kubelet runs until it succeeds before it starts the trainer; () for nothing.
    """

    name: str
    image: str
    command: list[str]
    args: list[str]
    env: list[tuple[str, str]]
    mounts: list[tuple[str, str]]
    ready: list[str]
    security: dict[str, Any]


def sidecars(plan: LaunchPlan) -> list[PodSidecar]:
    """Return the side-cars of each pod.

    Raises:
        UserError: the profile gives no image for one.
    """
    pods = plan.network.pods
    return [_sidecar(plan, needed) for needed in (pods.sidecars if pods is not None else ())]


def _sidecar(plan: LaunchPlan, needed: Sidecar) -> PodSidecar:
    site = plan.kubernetes.sidecars.get(needed.name)
    if site is None:
        raise UserError(
            f"the fabric {plan.network.fabric} needs the container {needed.name}: write its image "
            f"at kubernetes.sidecars.{needed.name}"
        )
    args = needed.args if site.args is None else site.args
    env = {**needed.env, **site.env}
    return PodSidecar(
        name=needed.name,
        image=site.image,
        command=[kept(word) for word in needed.command],
        args=[kept(word) for word in args],
        env=[(name, kept(value)) for name, value in sorted(env.items())],
        mounts=[(fabric_volume(name), mount) for name, mount in sorted(needed.mounts.items())],
        ready=["cat", needed.ready_file] if needed.ready_file is not None else [],
        security=_security(needed),
    )


def _security(needed: Sidecar) -> dict[str, Any]:
    # Kubernetes: a capability that is added has effect for root alone.
    context: dict[str, Any] = {"runAsUser": ROOT_USER}
    if needed.capabilities:
        context["capabilities"] = {"add": list(needed.capabilities)}
    return context
