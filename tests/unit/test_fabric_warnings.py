"""What pods of a fabric ask for and cannot have: GPUs of others, cards, files of the node."""

from __future__ import annotations

from typing import Any

import pytest
from networks import JOB

from orchestrator.network_check import check_network
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

TOPO = "NCCL_TOPO_FILE"


def judged(
    network: str, kubernetes: dict[str, Any], *sets: str, target: str = "jobset"
) -> tuple[list[str], str]:
    """The warnings' places and texts, and what is rendered."""
    site = {"runs": {"pvc": "runs"}, "pod_security": "none", "run_as_user": 0, **kubernetes}
    raw = {"name": "dev", "target": target, "runs_root": "/runs", "kubernetes": site}
    cluster = ClusterProfile.model_validate(raw)
    text = (JOB + f"network: {{{network}}}\n").encode()
    job = resolve_job(parse_document(text, "job.yaml"), cluster, sets)
    found = check_network(job, cluster)
    assert not found.faults
    files = render(make_plan(job.spec, cluster)).files
    return [w.as_warning() for w in found.warnings], files.get("jobset.yaml") or files["job.sh"]


@pytest.mark.parametrize(
    ("network", "kubernetes", "resource", "place"),
    [
        ("fabric: hccl", {}, "huawei.com/Ascend910", ""),
        ("fabric: rccl", {}, "amd.com/gpu", ""),
        ("fabric: cncl", {}, "cambricon.com/mlu", ""),
        ("fabric: xccl", {}, "nvidia.com/gpu", "network.fabric"),
        ("backend: hccl", {}, "nvidia.com/gpu", "network.backend"),
        # What the site writes holds; of NVIDIA's it is told.
        ("fabric: xccl", {"gpu_resource": "gpu.intel.com/xe"}, "gpu.intel.com/xe", ""),
        ("fabric: hccl", {"gpu_resource": "huawei.com/npu"}, "huawei.com/npu", ""),
        ("fabric: rccl", {"gpu_resource": "nvidia.com/gpu"}, "nvidia.com/gpu",
         "kubernetes.gpu_resource"),
        ("fabric: infiniband", {}, "nvidia.com/gpu", ""),
        ("backend: gloo", {}, "nvidia.com/gpu", ""),
    ],
)  # fmt: skip
def test_pods_ask_for_the_gpus_of_the_fabrics_vendor(
    network: str, kubernetes: dict[str, Any], resource: str, place: str
) -> None:
    warnings, text = judged(network, kubernetes)
    assert f'"{resource}": "4"' in text
    assert (resource == "nvidia.com/gpu") is ("nvidia.com/gpu" in text)
    assert len(warnings) == bool(place)
    for warning in warnings:
        assert f"{place}: pods ask for GPUs as nvidia.com/gpu" in warning
        assert "write kubernetes.gpu_resource" in warning


def test_the_label_of_other_gpus_is_not_nvidias() -> None:
    kind = "resources.gpu_type=MI300X"
    [warning], _ = judged("fabric: rccl", {}, kind)
    assert "resources.gpu_type: pods go to nodes whose label nvidia.com/gpu.product is" in warning
    assert judged("fabric: rccl", {"gpu_type_label": "amd.com/gpu.family"}, kind)[0] == []
    assert judged("fabric: infiniband", {}, kind)[0] == []


@pytest.mark.parametrize(
    ("kubernetes", "is_told"),
    [
        ({}, True),
        ({"extra_resources": {"hugepages-2Mi": "1Gi"}}, True),
        ({"extra_resources": {"example.org/cxi": "1"}}, False),
        ({"host_network": True}, False),
    ],
)
def test_cards_that_the_preset_cannot_give_to_pods_are_told(
    kubernetes: dict[str, Any], is_told: bool
) -> None:
    warnings, _ = judged("fabric: slingshot", kubernetes)
    assert ["in pods of the fabric slingshot" in w for w in warnings] == [True] * is_told
    assert all("kubernetes.host_network: true" in w for w in warnings)


@pytest.mark.parametrize(
    ("volumes", "sets", "is_set"),
    [
        ({}, [], False),
        ({"t": {"mount": "/opt/microsoft/", "host_path": "/opt/microsoft"}}, [], True),
        ({"t": {"mount": "/opt/micro", "host_path": "/opt/micro"}}, [], False),
        ({}, [f"network.env.{TOPO}=/opt/microsoft/ndv5-topo.xml"], True),
    ],
)
def test_a_file_of_the_node_is_named_where_pods_have_it(
    volumes: dict[str, Any], sets: list[str], is_set: bool
) -> None:
    warnings, text = judged("fabric: azure-nd-h100-v5", {"volumes": volumes}, *sets)
    assert (TOPO in text) is is_set
    assert [
        f"in pods {TOPO} of the fabric azure-nd-h100-v5 is left out" in w for w in warnings
    ] == ([] if is_set else [True])


def test_nodes_have_their_own_files() -> None:
    warnings, text = judged("fabric: azure-nd-h100-v5", {}, target="slurm")
    assert (warnings, TOPO in text) == ([], True)
