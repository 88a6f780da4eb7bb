"""What is wrong and what is doubtful in a job's network: texts, and the place of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import Fault
from orchestrator.network_check import Judged, check_network
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import ClusterProfile, find_profiles
from orchestrator.source import parse_document
from orchestrator.spec import ResolvedJob, resolve_job

JOB = """\
name: demo
resources: {nodes: 2, gpus_per_node: 4}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 5}
"""
Cli = Callable[..., tuple[int, str, str]]
CPU = "resources.gpus_per_node=0"
PRESETS = Path(__file__).resolve().parents[2] / "orchestrator" / "data" / "fabrics"


def profile(fabric: str | None = None, target: str = "slurm") -> ClusterProfile:
    return ClusterProfile.model_validate({"name": "dev", "target": target, "fabric": fabric})


def resolved(text: str, cluster: ClusterProfile, *sets: str) -> ResolvedJob:
    return resolve_job(parse_document((JOB + text).encode(), "job.yaml"), cluster, sets)


def judged(text: str, *sets: str, fabric: str | None = None, target: str = "slurm") -> Judged:
    cluster = profile(fabric, target)
    return check_network(resolved(text, cluster, *sets), cluster)


def planned(text: str, *sets: str, fabric: str | None = None, target: str = "slurm") -> LaunchPlan:
    cluster = profile(fabric, target)
    return make_plan(resolved(text, cluster, *sets).spec, cluster)


def lines(found: tuple[Fault, ...]) -> list[str]:
    return [fault.as_warning() for fault in found]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "env: {NCCL_SOKET_IFNAME: eth0}",
            (
                "4:7 env.NCCL_SOKET_IFNAME: NCCL_SOKET_IFNAME is not among the names of nccl "
                "(2.16 to 2.32) and torch (2.13); did you mean NCCL_SOCKET_IFNAME?"
            ),
        ),
        (
            "network: {env: {NCCL_IB_GDR_LEVEL: '3'}}",
            (
                "4:17 network.env.NCCL_IB_GDR_LEVEL: NCCL_IB_GDR_LEVEL does nothing since nccl 2.4;"
                " write NCCL_NET_GDR_LEVEL"
            ),
        ),
        (
            "clusters: {other: {env: {NCCL_ASYNC_ERROR_HANDLING: '1'}}}",
            (
                "4:26 clusters.other.env.NCCL_ASYNC_ERROR_HANDLING: NCCL_ASYNC_ERROR_HANDLING is an"
                " old name of torch's TORCH_NCCL_ASYNC_ERROR_HANDLING; write "
                "TORCH_NCCL_ASYNC_ERROR_HANDLING"
            ),
        ),
        (
            "clusters: {dev: {network: {env: {TORCH_NCCL_TRACE_BUFFER_SIZE: '9'}}}}",
            (
                "4:34 clusters.dev.network.env.TORCH_NCCL_TRACE_BUFFER_SIZE: "
                "TORCH_NCCL_TRACE_BUFFER_SIZE is an old name of torch's TORCH_FR_BUFFER_SIZE; write"
                " TORCH_FR_BUFFER_SIZE"
            ),
        ),
        (
            "network: {interface: eth0, env: {NCCL_SOCKET_IFNAME: '=eth1'}}",
            (
                "4:54 network.env.NCCL_SOCKET_IFNAME: NCCL_SOCKET_IFNAME is '=eth0' by "
                "network.interface, and '=eth1' here, which holds; remove it, or network.interface"
            ),
        ),
        (
            "network: {address_family: ipv6}\nenv: {NCCL_SOCKET_FAMILY: AF_INET}",
            (
                "5:27 env.NCCL_SOCKET_FAMILY: NCCL_SOCKET_FAMILY is 'AF_INET6' by "
                "network.address_family, and 'AF_INET' here, which holds; remove it, or "
                "network.address_family"
            ),
        ),
        (
            "network: {debug: trace}\nenv: {NCCL_DEBUG: VERSION}",
            (
                "5:19 env.NCCL_DEBUG: network.debug sets NCCL_DEBUG too, and the value here holds; "
                "remove it, or network.debug"
            ),
        ),
        (
            "network: {fabric: infiniband}\nenv: {NCCL_DEBUG: WARN}",
            (
                "5:19 env.NCCL_DEBUG: with NCCL_DEBUG 'WARN' NCCL does not tell its transports, and"
                " network.watch compares nothing; remove it, or write network.watch: off"
            ),
        ),
        (
            "network: {fabric: infiniband}\nenv: {NCCL_DEBUG: INFO}",
            (
                "5:19 env.NCCL_DEBUG: NCCL_DEBUG without NCCL_DEBUG_FILE: what NCCL tells of its "
                "transports is in no file, and network.watch compares nothing; remove it, add "
                "NCCL_DEBUG_FILE, or write network.watch: off"
            ),
        ),
        (
            "network: {fabric: infiniband, env: {NCCL_IB_HCA: mlx5_3}}",
            (
                "4:50 network.env.NCCL_IB_HCA: NCCL_IB_HCA is 'mlx5' in the fabric infiniband (Only"
                " adapters of this driver; a storage adapter among them is left out with exact "
                "names (=mlx5_0,mlx5_1)), and 'mlx5_3' here, which holds; remove it, unless "
                "'mlx5_3' is meant"
            ),
        ),
        (
            "network: {fabric: infiniband}\nenv: {NCCL_IB_DISABLE: '1'}",
            (
                "5:24 env.NCCL_IB_DISABLE: the fabric infiniband leaves NCCL_IB_DISABLE alone: it "
                "would turn InfiniBand off, and NCCL would use TCP; remove it, unless it is meant"
            ),
        ),
        (
            "network: {fabric: slingshot, interface: ib0}",
            (
                "4:41 network.interface: NCCL_SOCKET_IFNAME is 'hsn' in the fabric slingshot (Its "
                "interfaces begin so), and '=ib0' here, which holds; remove it, unless '=ib0' is "
                "meant"
            ),
        ),
    ],
)
def test_what_is_doubtful_is_said_at_its_place(text: str, warning: str) -> None:
    found = judged(text + "\n")
    assert found.faults == ()
    assert lines(found.warnings) == [f"warning: job.yaml:{warning}"]


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


def test_a_fabric_without_gpus_is_not_used_and_that_is_said() -> None:
    found = judged("", CPU, fabric="infiniband")
    expected = "warning: profile dev fabric: the fabric infiniband is for nccl, and the job uses "
    expected += "gloo, since it asks for no GPUs: nothing of it is used; add "
    expected += "resources.gpus_per_node, or write network.fabric: null"
    assert lines(found.warnings) == [expected]
    plan = planned("", CPU, fabric="infiniband")
    assert plan.trainer["network"] == {
        "fabric": None, "promises": [], "watch": "warn", "debug": "off", "interface": None,
    }  # fmt: skip
    assert "NCCL_IB_HCA" not in dict(plan.env)
    assert plan.network.pods is None


@pytest.mark.parametrize(
    ("fabric", "backend", "fault"),
    [
        ("infiniband", "gloo", "gloo, and the fabric infiniband is for nccl"),
        ("hccl", "nccl", "nccl, and the fabric hccl is for hccl"),
        ("gloo", "nccl", "nccl, and the fabric gloo is for gloo"),
    ],
)
def test_a_backend_that_the_fabric_is_not_for(fabric: str, backend: str, fault: str) -> None:
    found = judged(f"network: {{fabric: {fabric}, backend: {backend}}}\n")
    assert [(f.key, f.message) for f in found.faults] == [("network.backend", fault)]
    assert found.warnings == ()


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


@pytest.mark.parametrize("target", ["slurm", "local"])
def test_the_family_of_addresses_has_no_meaning_on_this_machine(target: str) -> None:
    text = "network: {address_family: ipv6, host_suffix: -ib}\n"
    plan, found = planned(text, target=target), judged(text, target=target)
    is_local = target == "local"
    assert (plan.network.address_family, plan.network.host_suffix) == (
        ("auto", None) if is_local else ("ipv6", "-ib")
    )
    assert [w.key for w in found.warnings] == ["network.address_family"] * is_local
    assert dict(plan.env).get("NCCL_SOCKET_FAMILY") == (None if is_local else "AF_INET6")


@pytest.mark.parametrize(
    ("text", "key", "number"),
    [
        ("", "network.fabric", None),
        ("timeouts: {step: 10m}", "network.fabric", "1836 s, .* timeouts.step (10m) and 60 s"),
        ("env: {HCCL_EXEC_TIMEOUT: '7200'}", "env.HCCL_EXEC_TIMEOUT", "7200 s, .* (30m) and 60 s"),
        ("timeouts: {load: 5m}", "network.fabric", "1200 s, .* timeouts.load (5m) and 60 s"),
    ],
)
def test_hccl_gives_up_before_torch(text: str, key: str, number: str | None) -> None:
    found = judged(f"network: {{fabric: hccl}}\n{text}\n").faults
    assert [fault.key for fault in found] == ([key] if number else [])
    for fault in found if number else ():
        for part in (number or "").split(" .* "):
            assert part in fault.message


def test_a_profile_names_a_fabric_by_name_or_by_a_path_beside_it(tmp_path: Path) -> None:
    text = (PRESETS / "ethernet.yaml").read_text("utf-8").replace("name: ethernet", "name: ours")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ours.yaml").write_text(text)
    clusters = tmp_path / "site" / "clusters.yaml"
    clusters.write_text(
        "clusters:\n  good: {target: slurm, fabric: ./ours.yaml}\n"
        "  bad:\n    target: slurm\n    fabric: infinibnd\n"
    )
    source = find_profiles(str(clusters), {}, tmp_path)
    good = source.choose("good")
    job = resolved("", good)
    assert check_network(job, good) == Judged((), ())
    assert make_plan(job.spec, good).trainer["network"]["fabric"] == "ours"
    bad = source.choose("bad")
    [fault] = check_network(resolved("", bad), bad).faults
    assert (fault.where(), fault.key) == (f"{clusters}:5:13", "clusters.bad.fabric")
    assert "no such preset; did you mean infiniband?" in fault.message.replace("  ", " ")


def test_warnings_are_printed_and_change_no_code(cli: Cli, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + "env: {NCCL_SOKET_IFNAME: eth0}\n")
    for argv in (["validate"], ["render"], ["submit", "--dry-run"]):
        code, _, err = cli(*argv, str(job), "--cluster", "slurm")
        assert code == 0
        assert f"warning: {job}:4:7 env.NCCL_SOKET_IFNAME: " in err
    for name in ("validate", "render"):
        [warning] = json.loads(cli(name, str(job), "--json")[1])["warnings"]
        assert (warning["line"], warning["fix"]) == (4, "did you mean NCCL_SOCKET_IFNAME?")
