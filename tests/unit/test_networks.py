"""Where nodes meet: interfaces by exact names, never the loopback one, addresses of both kinds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_slurm_script import JOB, plan_of, rendered

from orchestrator.errors import FaultsError, UserError
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from running import Nodes
from trainer import batch, node


@pytest.mark.case("L03")
def test_a_node_that_cannot_resolve_node_0_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    nodes = Nodes(tmp_path / "run", tmp_path)
    nodes.start(1, head="full-name.invalid", address="")
    assert nodes.codes() == {1: 1}
    assert "no way from " in nodes.log(1).read_text()
    assert "to node 0 at full-name.invalid" in nodes.log(1).read_text()


@pytest.mark.case("L11")
def test_an_interface_is_an_exact_name_for_every_library() -> None:
    job = {**JOB, "resources": {"nodes": 2, "gpus_per_node": 1}, "network": {"interface": "eth0"}}
    assert ("NCCL_SOCKET_IFNAME", "=eth0") in plan_of(job).env
    assert ("GLOO_SOCKET_IFNAME", "eth0") in plan_of({**JOB, "network": job["network"]}).env


@pytest.mark.case("L11")
@pytest.mark.parametrize("name", ["lo", "lo:1"])
def test_the_loopback_interface_is_refused_between_nodes(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} leads nowhere .* the run has 2 nodes"):
        plan_of({**JOB, "network": {"interface": name}})
    assert plan_of({**JOB, "resources": {"nodes": 1}, "network": {"interface": name}}).interface


@pytest.mark.case("L11")
@pytest.mark.parametrize("section", ["env: {%s}", "network: {env: {%s}}"])
@pytest.mark.parametrize(
    ("value", "is_good"),
    [
        ("^docker0", False), ("^=docker0", False), ("^docker,", False), ("^=l", False),
        ("^docker0,lo", True), ("^=docker0,lo", True), ("^l", True), ("eth0", True),
    ],
)  # fmt: skip
def test_a_list_of_interfaces_to_leave_out_names_lo(
    section: str, value: str, is_good: bool
) -> None:
    text = "name: x\ntrain: {model: {preset: nano}, data: {python_docs: true}, steps: 5}\n"
    document = parse_document(
        (text + section % f'NCCL_SOCKET_IFNAME: "{value}"').encode(), "job.yaml"
    )
    if is_good:
        resolve_job(document)
        return
    with pytest.raises(FaultsError, match="loopback interface") as caught:
        resolve_job(document)
    assert caught.value.faults[0].key.endswith("NCCL_SOCKET_IFNAME")


@pytest.mark.case("L10")
def test_the_interface_of_the_profile_says_where_the_nodes_meet() -> None:
    defaults = {"network": {"interface": "ib0.8001"}}
    profile = ClusterProfile(name="dev", target="slurm", defaults=defaults)
    document = parse_document(json.dumps(JOB).encode(), "job.yaml")
    plan = make_plan(resolve_job(document, profile).spec, profile)
    assert plan.interface == "ib0.8001"
    text = rendered({**JOB, **defaults})
    assert "peers=(--interface ib0.8001)\n" in text
    assert batch.own_address(["--interface", "lo"]) == "127.0.0.1"
    assert node.interface_of("127.0.0.1") == node.interface_of("localhost") == "lo"
    assert node.interface_of("no-such-name.invalid") == node.interface_of("192.0.2.77") == ""
    with pytest.raises(batch.Refused, match=r"'eth77' has no address here; .* lo: 127\.0\.0\.1"):
        batch.own_address(["--interface", "eth77"])


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root here")
@pytest.mark.case("L04", "L10")
@pytest.mark.skipif(not shutil.which("ip"), reason="no ip here")
def test_an_interface_with_an_ipv6_address_alone_and_one_with_two() -> None:
    """In a network of its own, which ends with the command."""
    set_up = """ip link add a0 type veth peer name a1
    ip addr add fd00::5/64 dev a0 nodad; ip link set a0 up; ip link set a1 up
    ip addr add 10.1.0.1/24 dev a1; ip addr add 10.1.0.2/24 dev a1; exec "$@" """
    code = f"""import runpy
    own = runpy.run_path({batch.__file__!r})["interface_address"]
    of = runpy.run_path({node.__file__!r}, run_name="node")["interface_of"]
    print(own("a0"), own("a1"), of("fd00::5"), of("10.1.0.1"), of("10.1.0.2"), of("10.1.0.3"), ".")
    """.replace("\n    ", "\n")
    enter = ["unshare", "--net", "sh", "-ec", set_up, "sh", sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(enter, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fd00::5 10.1.0.1 a0 a1 a1  .\n", done.stderr
