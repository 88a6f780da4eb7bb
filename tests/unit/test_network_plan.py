"""What becomes of `network`: device and backend, variables by strength, what a fabric needs."""

from __future__ import annotations

import pytest
from networks import CPU, judged, planned

from orchestrator.fabrics import names, preset


def test_what_the_user_writes_holds() -> None:
    text = (
        "network: {fabric: infiniband, interface: ib0, env: {NCCL_IB_HCA: mlx5_3, NCCL_DEBUG: A}}\n"
    )
    plan = planned(text + "env: {NCCL_SOCKET_IFNAME: '=ib1'}\n")
    env = dict(plan.env)
    assert (env["NCCL_IB_HCA"], env["NCCL_SOCKET_IFNAME"], env["NCCL_DEBUG"]) == (
        "mlx5_3", "=ib1", "A",
    )  # fmt: skip
    assert dict(planned("network: {fabric: infiniband}\n").env)["NCCL_IB_HCA"] == "mlx5"


@pytest.mark.parametrize(
    ("text", "sets", "expected"),
    [
        ("", [], ("cuda", "nccl")),
        ("", [CPU], ("cpu", "gloo")),
        ("network: {backend: gloo}", [], ("cuda", "gloo")),
        ("network: {backend: xccl}", [], ("xpu", "xccl")),
        ("network: {fabric: xccl}", [], ("xpu", "xccl")),
        ("network: {fabric: hccl}", [], ("npu", "hccl")),
        ("network: {fabric: cncl}", [], ("mlu", "cncl")),
        ("network: {fabric: cncl}", [CPU], ("cpu", "gloo")),
        ("network: {fabric: gloo}", [], ("cuda", "nccl")),
        ("network: {backend: 'cpu:gloo,cuda:nccl', fabric: efa}", [],
         ("cuda", "cpu:gloo,cuda:nccl")),
    ],
)  # fmt: skip
def test_the_backend_follows_from_device_and_fabric(
    text: str, sets: list[str], expected: tuple[str, str]
) -> None:
    plan = planned(text + "\n", *sets)
    assert (plan.trainer["device"], plan.trainer["backend"]) == expected
    if "efa" in text:
        assert plan.network.fabric == "efa"


def test_an_interface_is_named_for_each_library() -> None:
    sets = ["network.interface=eth0"]
    assert ("CCL_KVS_IFACE", "eth0") in planned("network: {backend: xccl}\n", *sets).env
    assert ("HCCL_SOCKET_IFNAME", "=eth0") in planned("network: {backend: hccl}\n", *sets).env


def test_the_plan_has_what_a_fabric_needs_of_nodes_and_pods() -> None:
    network = planned("network: {fabric: gcp-rdma}\n").network
    assert network.script == "/usr/local/gib/scripts/set_nccl_env.sh"
    assert network.library_path[0] == "/usr/local/gib/lib64"
    assert network.promises == ("NET/gIB",)
    pods = planned("network: {fabric: infiniband}\n").network.pods
    assert pods is not None
    assert pods.rdma


@pytest.mark.parametrize(
    ("target", "host_network", "interface"),
    [("slurm", None, "en"), ("jobset", None, None), ("job", False, None), ("job", True, "en")],
)
def test_pods_get_names_of_the_nodes_interfaces_with_the_nodes_network_alone(
    target: str, host_network: bool | None, interface: str | None
) -> None:
    pods = "runs: {pvc: runs}, pod_security: none, run_as_user: 0"
    pods += "" if host_network is None else f", host_network: {str(host_network).lower()}"
    text = f"clusters: {{dev: {{kubernetes: {{{pods}}}}}}}\n" * (target != "slurm")
    plan = planned(text, fabric="efa", target=target)
    assert dict(plan.env).get("NCCL_SOCKET_IFNAME") == interface
    assert dict(plan.env)["FI_EFA_USE_HUGE_PAGE"] == "0"
    own = judged(text, "env.NCCL_SOCKET_IFNAME==eth0", fabric="efa", target=target)
    assert own.faults == ()
    assert len(own.warnings) == (
        interface is not None
    )  # where nothing is set, nothing is in the way


INTERFACES = ("_IFNAME", "_IFACE", "_NET_DEVICES", "_CTRL_DEV", "_IF_IP", "_ADDR", "_NETWORK")


@pytest.mark.parametrize("name", names())
def test_interfaces_that_a_preset_names_are_those_of_pods_or_said_to_be_the_nodes(
    name: str,
) -> None:
    """A pod's are eth0 and on, by the name that container runtimes give."""
    for variable, setting in preset(name).variables.items():
        if variable.endswith(INTERFACES):
            parts = setting.value.removeprefix("=").split(",")
            assert setting.of_node is not all(part.startswith("eth") for part in parts), variable
