"""Every pod that is rendered is safe to run: by its site's level of Pod Security, and by what has
gone wrong in other launchers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from k8s.objects import PodTemplate, pod_templates, quantity, walk
from k8s.podsecurity import broken
from k8s.rules import STARTS_JOBS
from k8s.sites import CONTAINERS, JOBS, SITES, TARGETS, site_objects

SHELLS = {"sh", "bash", "dash", "env"}
HOUR_S = 3600
each_run = pytest.mark.parametrize(
    ("job", "target", "site"),
    [(job, target, site) for job in JOBS for target in TARGETS for site in SITES],
)


def pods(job: str, target: str, site: str) -> list[PodTemplate]:
    """Each template of pods of a run; a PyTorchJob with a Master has two."""
    objects = site_objects(JOBS[job], target, site).values()
    return [template for manifest in objects for template in pod_templates(manifest)]


@each_run
def test_a_pod_passes_the_level_that_its_site_names(job: str, target: str, site: str) -> None:
    level = SITES[site].get("pod_security", "restricted")
    for pod in pods(job, target, site):
        if level != "none":
            assert broken(pod.spec, level) == []


def test_a_level_that_a_site_does_not_name_is_not_passed_by_chance() -> None:
    [on_baseline] = pods("elastic", "job", "volcano")
    assert "Running as Non-root" in broken(on_baseline.spec, "restricted")
    [with_rdma] = pods("elastic", "job", "coscheduling")
    assert {"Capabilities", "Host Namespaces", "HostPath Volumes"} <= set(
        broken(with_rdma.spec, "baseline")
    )


@each_run
def test_there_is_one_container_of_the_kinds_name(job: str, target: str, site: str) -> None:
    found = pods(job, target, site)
    assert len(found) == (2 if (target, job) == ("pytorchjob", "wide") else 1)
    for pod in found:
        assert [c["name"] for c in pod.spec["containers"]] == [CONTAINERS.get(target, "node")]
        assert "initContainers" not in pod.spec


@each_run
@pytest.mark.case("L17")
def test_a_pod_starts_the_launcher_and_no_shell(job: str, target: str, site: str) -> None:
    for pod in pods(job, target, site):
        [container] = pod.spec["containers"]
        names = [word.rpartition("/")[2] for word in container["command"]]
        assert names[-1] in {"orchestrate-node", "node.py"}
        assert not set(names) & SHELLS
        # What runs beside it: a hook counts inside the grace period, and nobody answers a probe.
        beside = {"lifecycle", "livenessProbe", "readinessProbe", "startupProbe"}
        assert not beside & set(container)


@each_run
def test_a_pod_has_time_to_save_a_checkpoint(job: str, target: str, site: str) -> None:
    for pod in pods(job, target, site):
        args = pod.spec["containers"][0]["args"]
        shutdown_s = int(args[args.index("--shutdown-timeout-s") + 1])
        assert shutdown_s >= (600 if job == "wide" else 1)
        assert pod.spec["terminationGracePeriodSeconds"] >= shutdown_s + 60


@each_run
@pytest.mark.case("L40")
def test_shared_memory_has_a_limit_within_the_containers(job: str, target: str, site: str) -> None:
    for pod in pods(job, target, site):
        [container] = pod.spec["containers"]
        [name] = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == name]
        assert volume["emptyDir"]["medium"] == "Memory"
        size = quantity(volume["emptyDir"]["sizeLimit"]) or Decimal(0)
        assert size >= 2 * 2**30
        memory = container["resources"].get("limits", {}).get("memory")
        assert memory is None or size < (quantity(memory) or 0)


@each_run
def test_a_pod_on_its_nodes_network_still_finds_services(job: str, target: str, site: str) -> None:
    for pod in pods(job, target, site):
        on_the_node = pod.spec.get("hostNetwork", False)
        assert on_the_node == SITES[site].get("host_network", False)
        assert (pod.spec.get("dnsPolicy") == "ClusterFirstWithHostNet") == on_the_node


@each_run
def test_memory_is_locked_where_there_is_rdma_and_nowhere_else(
    job: str, target: str, site: str
) -> None:
    for pod in pods(job, target, site):
        context = pod.spec["containers"][0].get("securityContext", {})
        added = context.get("capabilities", {}).get("add", [])
        assert added == (["IPC_LOCK"] if SITES[site].get("rdma") else [])


@each_run
@pytest.mark.case("L36")
def test_no_sidecar_and_no_token_that_is_not_needed(job: str, target: str, site: str) -> None:
    for pod in pods(job, target, site):
        assert pod.metadata["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod.metadata["annotations"]["sidecar.istio.io/inject"] == "false"
        account = pod.spec.get("serviceAccountName")
        assert account == SITES[site].get("service_account")
        assert account or pod.spec["automountServiceAccountToken"] is False


@each_run
def test_objects_of_a_run_have_its_labels_and_its_name(job: str, target: str, site: str) -> None:
    objects = site_objects(JOBS[job], target, site)
    assert len({manifest["metadata"]["name"] for manifest in objects.values()}) == 1
    for manifest in objects.values():
        metadata = manifest["metadata"]
        assert metadata["labels"]["orchestrate.dev/run"] == metadata["name"]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "orchestrate"
        assert metadata.get("namespace") == SITES[site].get("namespace")
        assert SITES[site].get("labels", {}).items() <= metadata["labels"].items()
        if manifest["kind"] in STARTS_JOBS:
            content = metadata["annotations"]["orchestrate.dev/content-hash"]
            assert re.fullmatch("[0-9a-f]{16}", content)


def values_of(objects: dict[str, dict[str, Any]], key: str) -> list[Any]:
    """Each value of a key, wherever it is."""
    found = [value for manifest in objects.values() for value in walk(manifest)]
    return [value for path, value in found if path.rpartition(".")[2] == key]


@each_run
@pytest.mark.case("L33")
def test_restarts_have_a_bound_for_every_kind(job: str, target: str, site: str) -> None:
    objects = site_objects(JOBS[job], target, site)
    key = "maxRestarts" if target in {"jobset", "trainjob"} else "backoffLimit"
    [bound] = values_of(objects, key)
    assert 0 < bound < 2**31
    if job == "wide":
        # 12 hours at most, each time; 14 days to begin another.
        times_s = sorted(set(values_of(objects, "activeDeadlineSeconds")))
        assert times_s[0] > 12 * HOUR_S
        assert times_s[-1] > (14 * 24 + 12) * HOUR_S or target == "jobset"  # which has no such key
    if target == "trainjob":
        assert values_of(objects, "ttlSecondsAfterFinished") == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_secret_is_named_and_never_there(target: str) -> None:
    objects = site_objects(JOBS["wide"], target, "kueue")
    assert "Secret" not in {manifest["kind"] for manifest in objects.values()}
    for pod in pods("wide", target, "kueue"):
        [token] = [v for v in pod.spec["containers"][0]["env"] if v["name"] == "HF_TOKEN"]
        assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
