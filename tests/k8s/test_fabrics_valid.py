"""Pods of every network preset are what an API server takes, and safe where that can be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from k8s.hostile import expanded, few, hostile, job_text
from k8s.objects import manifests, pod_templates
from k8s.rules import every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import CONTAINERS, NEUTRAL, TARGETS, render_job
from orchestrator.errors import FaultsError
from orchestrator.fabrics import names, preset

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "fabrics"
MAIN = {"pytorchjob": "pytorchjob", "trainjob": "runtime"}
"""The file with the pods by target; elsewhere that of the target's own name."""


def rendered(name: str, target: str) -> dict[str, Any]:
    path = GOLDEN / f"{name}.{target}.{MAIN.get(target, target)}.yaml"
    [manifest] = manifests(path.read_text("utf-8"))
    return manifest


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", names())
def test_the_pods_of_each_preset_are_valid(name: str, target: str) -> None:
    for release in releases():
        assert every_fault(rendered(name, target), release) == []


@pytest.mark.case("L41")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", names())
def test_memory_is_locked_where_the_fabric_has_rdma(name: str, target: str) -> None:
    pods = preset(name).kubernetes
    expected = ["IPC_LOCK"] if pods is not None and pods.rdma else []
    for pod in pod_templates(rendered(name, target)):
        [container] = pod.spec["containers"]
        assert container["name"] == CONTAINERS.get(target, "node")
        capabilities = container.get("securityContext", {}).get("capabilities", {})
        assert capabilities.get("add", []) == expected
        limits = container["resources"].get("limits", {})
        assert (pods.extra_resources if pods is not None else {}).items() <= limits.items()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", names())
def test_side_cars_do_not_keep_a_pod_from_ending(name: str, target: str) -> None:
    """Kubernetes documentation, "Sidecar Containers": init containers that are started again."""
    pods = preset(name).kubernetes
    needed = [sidecar.name for sidecar in pods.sidecars] if pods is not None else []
    for pod in pod_templates(rendered(name, target)):
        found = pod.spec.get("initContainers", [])
        assert [container["name"] for container in found] == needed
        assert {container["restartPolicy"] for container in found} <= {"Always"}
        assert not any(c.get("securityContext", {}).get("privileged") for c in found)


@few
@given(hostile, hostile)
@example("$(LEVEL)", "$$(LEVEL)")
@example("--say\n---\nkind: Secret", "")
def test_what_the_site_gives_a_side_car_arrives_as_it_was_written(arg: str, value: str) -> None:
    given = {"image": "registry.example.org/daemon:1", "args": [arg], "env": {"LEVEL": value}}
    site = {"pod_security": "none", "sidecars": {"tcpxo-daemon": given}}
    resources = {"nodes": 2, "gpus_per_node": 8}
    text = job_text(site, network={"fabric": "gcp-tcpxo"}, resources=resources)
    try:
        files = render_job(text, "jobset", NEUTRAL).files
    except FaultsError:
        assert "\0" in arg + value, "only what no process can have is refused"
        return
    [manifest] = manifests(files["jobset.yaml"])
    [sidecar] = pod_templates(manifest)[0].spec["initContainers"]
    seen: dict[str, str] = {}
    for variable in sidecar["env"]:
        seen[variable["name"]] = expanded(variable["value"], seen)
    assert [expanded(word, seen) for word in sidecar["args"]] == [arg]
    assert seen["LEVEL"] == value
    assert seen["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
