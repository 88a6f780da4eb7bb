"""What a fabric needs of pods, together with what the site says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Fault, FaultsError, UserError
from orchestrator.fabrics import preset
from orchestrator.network_check import Judged, check_network
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile, find_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

JOB = """\
name: demo
resources: {nodes: 2, gpus_per_node: 8}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 5}
"""
DAEMON = {"tcpxo-daemon": {"image": "registry.example.org/daemon:1"}}
FORM = "version: 1\nname: own\nsummary: ours\nbackends: [nccl]\nreviewed: 2026-11\ntried: true\n"


def planned(
    fabric: str, kubernetes: dict[str, Any], *sets: str, target: str = "jobset"
) -> LaunchPlan:
    raw = {"name": "pods", "target": target, "runs_root": "/runs", "fabric": fabric}
    site = {"runs": {"pvc": "runs"}, "pod_security": "none", **kubernetes}
    cluster = ClusterProfile.model_validate({**raw, "kubernetes": site})
    job = resolve_job(parse_document(JOB.encode(), "job.yaml"), cluster, sets)
    return make_plan(job.spec, cluster)


def judged(tmp_path: Path, fabric: str, kubernetes: str) -> Judged:
    """What is wrong and doubtful in the job on a cluster whose profile is in a file."""
    (tmp_path / "c.yaml").write_text(
        f"clusters:\n  pods:\n    target: jobset\n    runs_root: /runs\n    fabric: {fabric}\n"
        f"    kubernetes: {{runs: {{pvc: runs}}, {kubernetes}}}\n"
    )
    cluster = find_profiles(str(tmp_path / "c.yaml"), {}, tmp_path).choose("pods")
    job = resolve_job(parse_document(JOB.encode(), "job.yaml"), cluster, [])
    return check_network(job, cluster)


def faults(tmp_path: Path, fabric: str, kubernetes: str) -> list[str]:
    found = judged(tmp_path, fabric, kubernetes).faults
    return [f"{place(fault)} {fault.key}: {fault.message}" for fault in found]


def place(fault: Fault) -> str:
    assert fault.position is not None
    return f"{Path(fault.file).name}:{fault.position.line}:{fault.position.column}"


@pytest.mark.parametrize(
    ("fabric", "site", "rdma", "resources"),
    [
        ("infiniband", {}, True, {"rdma/ib": "1"}),
        # Devices that the site names take the place of the fabric's, their number included.
        ("infiniband", {"extra_resources": {"rdma/ib": "8"}}, True, {"rdma/ib": "8"}),
        ("infiniband", {"extra_resources": {"nvidia.com/hostdev": "8"}}, True,
         {"nvidia.com/hostdev": "8"}),
        ("efa", {"extra_resources": {"hugepages-2Mi": "1Gi"}}, True,
         {"hugepages-2Mi": "1Gi", "vpc.amazonaws.com/efa": "1"}),
        ("infiniband", {"rdma": False}, False, {"rdma/ib": "1"}),
        ("gb200", {}, True, {}),
        ("ethernet", {}, False, {}),
        ("ethernet", {"rdma": True}, True, {}),
    ],
)  # fmt: skip
def test_what_the_site_says_holds(
    fabric: str, site: dict[str, Any], rdma: bool, resources: dict[str, str]
) -> None:
    kubernetes = planned(fabric, site).kubernetes
    assert (kubernetes.rdma, kubernetes.extra_resources) == (rdma, resources)


@pytest.mark.parametrize(
    ("fabric", "kubernetes", "places"),
    [
        ("infiniband", "pod_security: none", ["c.yaml:5:13 clusters.pods.fabric"]),
        ("infiniband", "pod_security: none, run_as_user: 7", ["c.yaml:5:13 clusters.pods.fabric"]),
        ("ethernet", "pod_security: none, rdma: true",
         ["c.yaml:6:63 clusters.pods.kubernetes.rdma"]),
        ("infiniband", "pod_security: none, run_as_user: 0", []),
        ("infiniband", "pod_security: none, run_as_user: null", []),  # the image's, perhaps root
        ("infiniband", "pod_security: none, rdma: false", []),
        ("infiniband", "pod_security: baseline", []),  # a fault
    ],
)  # fmt: skip
def test_a_capability_for_a_user_whom_it_does_not_reach(
    tmp_path: Path, fabric: str, kubernetes: str, places: list[str]
) -> None:
    found = judged(tmp_path, fabric, kubernetes).warnings
    assert [f"{place(fault)} {fault.key}" for fault in found] == places
    assert all("run_as_user: 0" in fault.as_warning() for fault in found)


def test_a_fabric_that_is_not_used_needs_nothing() -> None:
    plan = planned("infiniband", {}, "resources.gpus_per_node=0")
    assert not plan.kubernetes.rdma
    assert not plan.kubernetes.extra_resources
    assert "IPC_LOCK" not in render(plan).files["jobset.yaml"]


@pytest.mark.parametrize(
    ("fabric", "kubernetes", "expected"),
    [
        ("ethernet", "pod_security: restricted", []),
        ("infiniband", "pod_security: none", []),
        ("infiniband", "rdma: false", []),
        ("infiniband", "pod_security: baseline", [
            ("c.yaml:5:13 clusters.pods.fabric: in pods the fabric infiniband needs IPC_LOCK, and "
            "Pod Security's level baseline (kubernetes.pod_security) does not allow that"),
        ]),
        ("gcp-tcpxo", "sidecars: {tcpxo-daemon: {image: a/b}}", [
            ("c.yaml:5:13 clusters.pods.fabric: in pods the fabric gcp-tcpxo needs IPC_LOCK, "
            "folders of the node, tcpxo-daemon with NET_ADMIN and NET_BIND_SERVICE, and Pod "
            "Security's level restricted (kubernetes.pod_security) does not allow that"),
        ]),
        ("gcp-tcpx", "pod_security: none, sidecars: {tcpx: {image: a/b}}", [
            ("c.yaml:5:13 clusters.pods.fabric: in pods the fabric gcp-tcpx needs the container "
            "tcpx-daemon, and kubernetes.sidecars.tcpx-daemon gives no image for it"),
        ]),
        ("gcp-rdma", "pod_security: none, volumes: {g: {mount: /usr/local/, host_path: /g}}", [
            f"c.yaml:6:78 clusters.pods.kubernetes.volumes.g.mount: /usr/local takes the place of "
            f"/usr/local/{own}, where the fabric gcp-rdma has /home/kubernetes/bin/{own} of the "
            "node" for own in ("nvidia", "gib")
        ]),
    ],
)  # fmt: skip
def test_what_pods_cannot_have_is_told_at_its_place(
    tmp_path: Path, fabric: str, kubernetes: str, expected: list[str]
) -> None:
    assert faults(tmp_path, fabric, kubernetes) == expected


def test_a_job_without_its_sidecar_is_not_rendered() -> None:
    with pytest.raises(UserError, match=r"kubernetes\.sidecars\.tcpxo-daemon"):
        render(planned("gcp-tcpxo", {}))


def test_no_target_but_kubernetes_needs_a_side_car() -> None:
    assert "nccl-env-profile.sh" in render(planned("gcp-tcpxo", {}, target="slurm")).files["job.sh"]


def test_a_fabric_may_need_the_nodes_network(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"{FORM}kubernetes: {{host_network: true}}\n")
    own = str(tmp_path / "own.yaml")
    there, not_there = planned(own, {}), planned(own, {"host_network": False})
    assert there.kubernetes.host_network
    assert "hostNetwork: true" in render(there).files["jobset.yaml"]
    assert "hostNetwork" not in render(not_there).files["jobset.yaml"]


def test_the_name_of_a_sites_own_fabric_stays_a_comment(tmp_path: Path) -> None:
    text = FORM.replace("name: own", 'name: "own\\nhostPID: true"')
    (tmp_path / "own.yaml").write_text(
        f"{text}kubernetes: {{sidecars: [{{name: tcpxo-daemon}}]}}\n"
    )
    files = render(planned(str(tmp_path / "own.yaml"), {"sidecars": DAEMON})).files
    assert "# Side-cars of the fabric own hostPID: true: they" in files["jobset.yaml"]


@pytest.mark.parametrize(
    ("kubernetes", "place"),
    [
        ("{mounts: {a: /a}}", "kubernetes.mounts.a: a is no volume of the fabric's"),
        ("{volumes: {a: {path: a}}}", "kubernetes.volumes.a.path"),
        ("{volumes: {A: {path: /a}}}", "kubernetes.volumes.A"),
        ("{extra_resources: {rdma: '1'}}", "kubernetes.extra_resources.rdma"),
        ("{sidecars: [{name: A b}]}", "kubernetes.sidecars[0].name"),
        ("{sidecars: [{name: a, capabilities: [net admin]}]}", "capabilities"),
        ("{sidecars: [{name: a, mounts: {b: /b}}]}", "b is no volume of the fabric's"),
        ("{sidecars: [{name: a, env: {RANK: '0'}}]}", "RANK is set by the launcher"),
    ],
)
def test_a_faulty_need_is_told_with_its_place(tmp_path: Path, kubernetes: str, place: str) -> None:
    (tmp_path / "own.yaml").write_text(f"{FORM}kubernetes: {kubernetes}\n")
    with pytest.raises(FaultsError) as caught:
        preset(str(tmp_path / "own.yaml"))
    assert "own.yaml:7:" in str(caught.value)
    assert place in str(caught.value)


@pytest.mark.parametrize("name", ["A B", "x;id", "RANK"])
def test_no_preset_sets_what_is_no_variable_of_its_own(tmp_path: Path, name: str) -> None:
    setting = "{value: a, why: b, source: c}"
    (tmp_path / "own.yaml").write_text(f"{FORM}variables: {{{name}: {setting}}}\n")
    with pytest.raises(FaultsError, match="variables"):
        preset(str(tmp_path / "own.yaml"))


def test_the_example_is_for_two_networks(root: Path) -> None:
    document = parse_document((root / "examples" / "fabric.yaml").read_bytes(), "fabric.yaml")
    plans = {}
    for name, target in (("big", "slurm"), ("cloud", "jobset")):
        site = {} if target == "slurm" else {"runs": {"pvc": "runs"}}
        raw = {"name": name, "target": target, "runs_root": "/runs", "kubernetes": site}
        cluster = ClusterProfile.model_validate(raw)
        job = resolve_job(document, cluster, [])
        assert check_network(job, cluster).faults == ()
        plans[name] = make_plan(job.spec, cluster)
    assert dict(plans["big"].env)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_4,mlx5_5"
    assert plans["cloud"].network.fabric == "efa"
    assert "NCCL_SOCKET_IFNAME" not in dict(plans["cloud"].env)
    assert plans["cloud"].kubernetes.rdma
