"""What in `network` and the variables contradicts the rest of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec

GPUS: KeyPath = ("resources", "gpus_per_node")
BACKEND: KeyPath = ("network", "backend")
SHARED: KeyPath = ("network", "shared_gpus")
NEEDS_GPUS = ("nccl", "xccl", "hccl", "cncl", "cpu:gloo,cuda:nccl")
# A slice as NVIDIA's device plugin and MIG user guide name it: nvidia.com/mig-1g.5gb, 1g.10gb+me.
SLICE = re.compile(r"(^|[/._-])mig($|[._-])|[1-9]g\.[0-9]+gb", re.IGNORECASE)


def network_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong, with paths from the root."""
    yield from _backend_problems(spec)
    yield from _slice_problems(spec)
    yield from _env_problems(spec)


def _backend_problems(spec: JobSpec) -> Iterator[Problem]:
    backend = spec.network.backend
    if backend in NEEDS_GPUS and not spec.resources.gpus_per_node:
        yield Problem(
            BACKEND,
            f"{backend} needs GPUs, and resources.gpus_per_node is 0",
            "write backend: gloo, or add resources.gpus_per_node",
            involves=(GPUS,),
        )
    if backend in ("xccl", "hccl", "cncl") and spec.parallelism.cpu_offload:
        yield Problem(
            ("parallelism", "cpu_offload"),
            f"what lies on the CPU is summed there, and {backend} sums on its own devices alone",
            "remove it, or write network.backend: gloo",
            involves=(BACKEND,),
        )


def _slice_problems(spec: JobSpec) -> Iterator[Problem]:
    """NCCL user guide, "Troubleshooting": several slices of one GPU are not for one communicator
    (NVIDIA/nccl#431)."""
    is_nccl = spec.network.backend == "auto" or "nccl" in spec.network.backend
    if not (is_nccl and spec.resources.gpus_per_node and spec.num_ranks > 1):
        return
    given = {
        ("kubernetes", "gpu_resource"): spec.kubernetes.gpu_resource,
        ("resources", "gpu_type"): spec.resources.gpu_type or "",
    }
    for path, value in given.items():
        if SLICE.search(value) and not spec.network.shared_gpus:
            yield Problem(
                path,
                f"{value} is a slice (MIG) of a GPU, and nccl does not support "
                f"{spec.num_ranks} ranks on slices, which may be of one GPU",
                "ask for whole GPUs, write network.backend: gloo, or, if each rank has a slice of "
                "another GPU, network.shared_gpus: true",
                involves=(BACKEND, SHARED, GPUS),
            )


def _env_problems(spec: JobSpec) -> Iterator[Problem]:
    for name in spec.network.env:
        if spec.env.get(name, spec.network.env[name]) != spec.network.env[name]:
            yield Problem(
                ("network", "env", name),
                f"{name} has another value in env",
                "keep one of the two",
                "key",
                involves=(("env", name),),
            )
