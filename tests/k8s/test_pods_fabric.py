"""A fabric in pods: the vendor's script and folders of the node reach the ranks of real pods'
processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.controllers import Do
from k8s.manifests import JOB, objects_of, workspace
from k8s.network import Network, missing
from k8s.simulation import Cluster
from orchestrator.backends.processes import descendants
from slurm.training import at

pytestmark = [pytest.mark.e2e, pytest.mark.pods]
FABRIC = """
version: 1
name: ours
summary: a vendor's folder on each node
backends: [gloo]
reviewed: 2026-11
tried: true
variables:
  UCX_TLS: {value: "tcp,self", why: to see it, source: this test}
script: {path: /opt/vendor/env.sh, why: to see it, source: this test}
library_path: [/opt/vendor/lib]
kubernetes:
  volumes: {vendor: {path: FOLDER}}
  mounts: {vendor: /opt/vendor}
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := missing():
        pytest.skip(f"pods need namespaces of their own: {reason}")
    network = Network()
    yield network
    network.close()


def environments(cluster: Cluster, node: int) -> list[dict[str, str]]:
    """The variables of each rank of a pod."""
    found = []
    for process in descendants(cluster.live[node].process.pid):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
            found.append(dict(word.split("=", 1) for word in words if "=" in word))
    return [variables for variables in found if "RANK" in variables]


def test_a_script_and_a_folder_of_the_node_reach_the_ranks(
    tmp_path: Path, network: Network
) -> None:
    vendor = tmp_path / "vendor"
    (vendor / "lib").mkdir(parents=True)
    (vendor / "env.sh").write_text("export UCX_NET_DEVICES='a card' UCX_TLS=all\n")
    (tmp_path / "ours.yaml").write_text(FABRIC.replace("FOLDER", str(vendor)))
    code = workspace(tmp_path / "code", [at(1, rank, 2, "wait") for rank in (0, 1)])
    runs = tmp_path / "runs"
    runs.mkdir()
    text = f"{JOB}network: {{fabric: {tmp_path}/ours.yaml}}\n"
    objects = objects_of("jobset", text, pod_security="none")
    cluster = Cluster(objects, tmp_path / "pods", network, {"runs": runs, "code": code})
    try:
        cluster.start()
        waiting = runs / "pods" / "attempts" / "1" / "waiting"
        cluster.wait(waiting.exists, "two steps")
        for node in (0, 1):
            ranks = environments(cluster, node)
            assert ranks, os.listdir(tmp_path / "pods")
            for variables in ranks:
                assert variables["UCX_NET_DEVICES"] == "a card"
                assert variables["UCX_TLS"] == "tcp,self"  # what is set already stays
                assert variables["LD_LIBRARY_PATH"].split(":")[0] == "/opt/vendor/lib"
    finally:
        cluster.close()


def test_a_node_without_the_vendors_script_is_a_configuration_error(
    tmp_path: Path, network: Network
) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "ours.yaml").write_text(FABRIC.replace("FOLDER", str(tmp_path / "vendor")))
    code = workspace(tmp_path / "code", [])
    (tmp_path / "runs").mkdir()
    text = f"{JOB}network: {{fabric: {tmp_path}/ours.yaml}}\n"
    objects = objects_of("job", text, pod_security="none")
    cluster = Cluster(
        objects, tmp_path / "pods", network, {"runs": tmp_path / "runs", "code": code}
    )
    try:
        cluster.start()
        assert cluster.ends() is Do.FAILED
        assert 78 in cluster.codes
        assert "/opt/vendor/env.sh" in str(cluster.logs())
    finally:
        cluster.close()
