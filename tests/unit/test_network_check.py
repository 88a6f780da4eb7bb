"""What is wrong and what is doubtful in a job's network: texts, and the place of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from networks import CPU, JOB, judged, planned, resolved

from orchestrator.errors import Fault
from orchestrator.network_check import Judged, check_network
from orchestrator.plan import make_plan
from orchestrator.profiles import find_profiles

Cli = Callable[..., tuple[int, str, str]]
PRESETS = Path(__file__).resolve().parents[2] / "orchestrator" / "data" / "fabrics"


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
    ("target", "unused"),
    [
        ("slurm", []),
        ("jobset", ["host_suffix"]),
        ("local", ["interface", "address_family", "host_suffix"]),
    ],
)
def test_a_key_that_the_target_does_not_use_is_said(target: str, unused: list[str]) -> None:
    text = "network: {interface: ib0, address_family: ipv6, host_suffix: -ib}\n"
    text += "clusters: {dev: {kubernetes: {runs: {pvc: runs}}}}\n" * (target == "jobset")
    plan, found = planned(text, target=target), judged(text, target=target)
    is_local = target == "local"
    assert (plan.network.address_family, plan.network.host_suffix) == (
        ("auto", None) if is_local else ("ipv6", "-ib")
    )
    assert [w.key for w in found.warnings] == [f"network.{key}" for key in unused]
    assert dict(plan.env).get("NCCL_SOCKET_FAMILY") == (None if is_local else "AF_INET6")
    assert dict(plan.env)["NCCL_SOCKET_IFNAME"] == ("=lo" if is_local else "=ib0")


def test_what_nothing_sets_on_this_machine_is_not_said_to_be_set() -> None:
    text = "network: {interface: ib0}\nenv: {GLOO_SOCKET_IFNAME: lo}\n"
    [unused] = judged(text, target="local").warnings
    assert unused.key == "network.interface"
    assert [w.key for w in judged(text).warnings] == ["env.GLOO_SOCKET_IFNAME"]


def test_a_faulty_preset_is_told_in_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text("version: 1\nname: ours\nsumary: x\nbackends: [nccl]\n")
    found = judged(f"network: {{fabric: {file}}}\n").faults
    assert {(fault.file, fault.key) for fault in found} >= {(str(file), "sumary")}
    [missing] = judged("network: {fabric: ./nowhere.yaml}\n").faults
    assert (missing.key, missing.where()) == ("network.fabric", "job.yaml:4:19")
    assert "nowhere.yaml" in missing.message


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


def test_a_path_beside_a_profile_of_the_working_folder_stays_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (PRESETS / "ethernet.yaml").read_text("utf-8").replace("name: ethernet", "name: ours")
    (tmp_path / "ours.yaml").write_text(text)
    (tmp_path / "k.yaml").write_text("clusters:\n  a: {target: slurm, fabric: ./ours.yaml}\n")
    monkeypatch.chdir(tmp_path)
    profile = find_profiles("k.yaml", {}, tmp_path).choose()
    assert check_network(resolved("", profile), profile) == Judged((), ())


def test_a_variable_of_the_profiles_defaults_is_judged_in_the_profiles_file(tmp_path: Path) -> None:
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text(
        "clusters:\n  a:\n    target: slurm\n    fabric: infiniband\n"
        "    defaults: {network: {env: {NCCL_IB_HCA: mlx5_9}}, env: {NCCL_IB_DISABL: '0'}}\n"
    )
    cluster = find_profiles(str(clusters), {}, tmp_path).choose()
    found = check_network(resolved("", cluster), cluster)
    assert found.faults == ()
    assert [(w.where(), w.key) for w in found.warnings] == [
        (f"{clusters}:5:61", "clusters.a.defaults.env.NCCL_IB_DISABL"),
        (f"{clusters}:5:45", "clusters.a.defaults.network.env.NCCL_IB_HCA"),
    ]


def test_warnings_are_printed_and_change_no_code(cli: Cli, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + "env: {NCCL_SOKET_IFNAME: eth0}\n")
    for argv in (["validate"], ["render"], ["submit", "--dry-run"]):
        code, _, err = cli(*argv, str(job), "--cluster", "slurm")
        assert code == 0
        assert f"warning: {job}:4:7 env.NCCL_SOKET_IFNAME: " in err
    given = ("--cluster", "slurm", "--set", "resources.time_limit=5m")
    _, out, err = cli("validate", str(job), *given, "--json")
    [_, short] = json.loads(out)["warnings"]
    assert short["message"] == (
        "5m is too short for timeouts.shutdown (5m), which is 2m here: the stop begins at half of "
        "the time"
    )
    assert "warning: --set:1:22 resources.time_limit: 5m is too short" in err
    for name in ("validate", "render"):
        [warning] = json.loads(cli(name, str(job), "--json")[1])["warnings"]
        assert (warning["line"], warning["fix"]) == (4, "did you mean NCCL_SOCKET_IFNAME?")
