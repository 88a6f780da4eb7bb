"""What node.py and batch.py are told of the network: by the plan, and under real bash."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from test_slurm_script import JOB, LINES, Script, only, plan_of

from orchestrator.node_network import network_arguments
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from orchestrator.submitit_settings import submitit_settings
from trainer import node

GPUS = {"nodes": 2, "gpus_per_node": 4}
GIB = "--source /usr/local/gib/scripts/set_nccl_env.sh --library-path /usr/local/gib/lib64"
PLACE = {"interface": "ib0", "address_family": "ipv6"}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(tmp_path_factory.mktemp("arguments"))


def planned(
    resources: dict[str, Any], network: dict[str, Any], target: str = "slurm"
) -> LaunchPlan:
    job = {**JOB, "resources": resources, "network": network}
    if target == "slurm":
        return plan_of(job)
    profile = embedded_profiles().choose(target)
    return make_plan(
        resolve_job(parse_document(json.dumps(job).encode(), "f"), profile).spec, profile
    )


@pytest.mark.parametrize(
    ("resources", "network", "words"),
    [
        ({"nodes": 1}, {}, "--backend gloo"),
        ({"nodes": 2}, {}, "--backend gloo --preflight routes"),
        ({"nodes": 2}, {"host_suffix": "-ib"},
         "--backend gloo --host-suffix=-ib --preflight routes"),
        (GPUS, PLACE,
         "--backend nccl --interface ib0 --address-family ipv6 --preflight mig,nccl-conf,routes"),
        ({**GPUS, "nodes": 1}, {"fabric": "infiniband"},
         "--backend nccl --preflight mig,nccl-conf"),
        (GPUS, {"fabric": "infiniband"}, "--backend nccl --preflight memlock,mig,nccl-conf,routes"),
        (GPUS, {"fabric": "gcp-rdma", "shared_gpus": True},
         f"--backend nccl {GIB} --preflight memlock,mig,nccl-conf,routes --shared-gpus"),
        (GPUS, {"backend": "hccl"}, "--backend hccl --preflight routes"),
    ],
)  # fmt: skip
def test_the_plan_says_what_node_py_is_told(
    resources: dict[str, Any], network: dict[str, Any], words: str
) -> None:
    plan = planned(resources, network)
    assert network_arguments(plan) == shlex.split(words)
    assert f"  {words} \\\n" in render(plan).files["job.sh"]
    assert submitit_settings(plan)["node_arguments"] == shlex.split(words)


def test_simulated_nodes_have_the_addresses_that_they_are_given() -> None:
    plan = planned({"nodes": 2}, {"interface": "lo"}, "local")
    assert network_arguments(plan) == ["--backend", "gloo"]


def test_pods_have_no_names_with_a_suffix() -> None:
    plan = planned(GPUS, {**PLACE, "host_suffix": "-ib"}, "kubernetes-jobset")
    assert "--interface" in network_arguments(plan)
    assert not [w for w in network_arguments(plan) if w.startswith("--host-suffix")]


@pytest.mark.case("L10")
@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ({"host_suffix": "-fast"}, ["--host-suffix", "-fast", "localhost"]),
        ({"interface": "ib0"}, ["--interface", "ib0"]),
        ({"address_family": "ipv4", "host_suffix": ".ib"},
         ["--address-family", "ipv4", "--host-suffix", ".ib", "localhost"]),
    ],
)  # fmt: skip
def test_the_first_node_is_met_in_the_network_that_is_named(
    script: Script, network: dict[str, str], asked: list[str]
) -> None:
    batch = script.run_dir / "launch" / "batch.py"
    kept, note = batch.read_text(), script.folder / "asked"
    code = f"if sys.argv[1] == 'head': json.dump(sys.argv[3:], open({str(note)!r}, 'w'))\n"
    batch.write_text(f"import json, sys\n{code}{kept}")
    try:
        argv, _ = only(script.run(render(planned({"nodes": 2}, network)).files["job.sh"]), "srun")
    finally:
        batch.write_text(kept)
    assert json.loads(note.read_text()) == asked
    assert argv[argv.index("--head") + 1] == "10.0.0.1"


def test_a_first_node_without_the_interface_is_a_configuration_error(script: Script) -> None:
    batch = script.run_dir / "launch" / "batch.py"
    kept = batch.read_text()
    batch.write_text("import sys\nif sys.argv[1] == 'head': sys.exit(78)\n")
    try:
        calls = script.run(render(planned({"nodes": 2}, {"interface": "ib7"})).files["job.sh"])
    finally:
        batch.write_text(kept)
    assert script.code == 78
    assert not [argv for argv, _ in calls if Path(argv[0]).name in ("srun", "sleep")]


@settings(max_examples=10, deadline=None)
@given(path=LINES, folder=LINES)
def test_the_paths_of_a_sites_own_fabric_stay_one_word(
    script: Script, path: str, folder: str
) -> None:
    plan = planned(GPUS, {})
    own = replace(plan.network, script=f"/{path}", library_path=(f"/{folder}",))
    argv, _ = only(script.run(render(replace(plan, network=own)).files["job.sh"]), "srun")
    at = argv.index("--source")
    assert argv[at : at + 4] == ["--source", f"/{path}", "--library-path", f"/{folder}"]
    assert not list(script.folder.rglob("gone"))


def test_node_py_takes_what_it_is_given(tmp_path: Path) -> None:
    plan = planned(GPUS, {**PLACE, "fabric": "gcp-rdma", "host_suffix": "-ib", "shared_gpus": True})
    place = f"--run-dir {tmp_path} --head h --address 10.0.0.1 --id 7 --workdir / --nnodes 2"
    limits = "--port 9 --node-rank 0 --nproc-per-node 4 --start-timeout-s 9 --shutdown-timeout-s 9"
    args = node.parse([*place.split(), *limits.split(), *network_arguments(plan), "--", "true"])
    assert (args.backend, args.interface, args.host_suffix) == ("nccl", "ib0", "-ib")
    assert (args.address_family, args.shared_gpus) == ("ipv6", True)
    assert args.source == "/usr/local/gib/scripts/set_nccl_env.sh"
    assert args.library_path == list(plan.network.library_path) != []
    assert args.preflight == ["memlock", "mig", "nccl-conf", "routes"]
