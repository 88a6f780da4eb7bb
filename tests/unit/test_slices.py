"""Backends and the devices that they need: slices of GPUs, none, and the CPU beside them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import Fault, FaultsError
from orchestrator.profiles import ClusterProfile
from orchestrator.source import Document
from orchestrator.spec import resolve_job

JOB: dict[str, Any] = {
    "name": "demo",
    "train": {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 5},
}
GPUS = {"nodes": 2, "gpus_per_node": 2}


def faults(cluster: dict[str, Any] | None = None, **keys: Any) -> tuple[Fault, ...]:
    data = {**JOB, **keys, "clusters": {"dev": cluster or {}}}
    try:
        resolve_job(Document("f", "", data, {}), ClusterProfile(name="dev", target="slurm"))
    except FaultsError as error:
        return error.faults
    return ()


@pytest.mark.case("L28")
@pytest.mark.parametrize(
    ("resources", "site", "network", "key"),
    [
        (GPUS, {"gpu_resource": "nvidia.com/mig-1g.5gb"}, {}, "kubernetes.gpu_resource"),
        (GPUS, {"gpu_resource": "nvidia.com/mig-3g.40gb"}, {"backend": "nccl"},
         "kubernetes.gpu_resource"),
        ({**GPUS, "gpu_type": "a100_2g.10gb"}, {}, {}, "resources.gpu_type"),
        ({**GPUS, "gpu_type": "MIG-small"}, {}, {"backend": "cpu:gloo,cuda:nccl"},
         "resources.gpu_type"),
        ({**GPUS, "gpu_type": "1g.10gb"}, {}, {"shared_gpus": True}, None),
        ({**GPUS, "gpu_type": "1g.10gb"}, {}, {"backend": "gloo"}, None),
        ({"gpus_per_node": 1, "gpu_type": "1g.10gb"}, {}, {}, None),
        ({**GPUS, "gpu_type": "migration-a100"}, {}, {}, None),
        (GPUS, {"gpu_resource": "amd.com/gpu"}, {}, None),
    ],
)  # fmt: skip
def test_ranks_on_slices_of_one_gpu_are_refused_under_nccl(
    resources: dict[str, Any], site: dict[str, Any], network: dict[str, Any], key: str | None
) -> None:
    found = faults({"kubernetes": site}, resources=resources, network=network)
    assert [fault.key.removeprefix("clusters.dev.") for fault in found] == ([key] if key else [])
    for fault in found:
        assert "nccl does not support 4 ranks on slices" in fault.message
        assert "network.shared_gpus: true" in fault.fix


@pytest.mark.parametrize("backend", ["xccl", "hccl", "cncl", "cpu:gloo,cuda:nccl"])
def test_backends_of_devices_need_devices(backend: str) -> None:
    [fault] = faults(network={"backend": backend})
    assert (fault.key, fault.message) == (
        "network.backend", f"{backend} needs GPUs, and resources.gpus_per_node is 0",
    )  # fmt: skip
    assert not faults(network={"backend": backend}, resources=GPUS)


@pytest.mark.parametrize("backend", ["xccl", "hccl", "cncl"])
def test_what_lies_on_the_cpu_needs_a_backend_for_it(backend: str) -> None:
    parallelism = {"strategy": "full_shard", "cpu_offload": True}
    [fault] = faults(network={"backend": backend}, resources=GPUS, parallelism=parallelism)
    assert fault.key == "parallelism.cpu_offload"
    assert f"{backend} sums on its own devices alone" in fault.message
