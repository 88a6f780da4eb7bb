"""Every manifest that is rendered is one that an API server takes, and safe to run."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from k8s.objects import PodTemplate, manifests, pod_templates, quantity, walk
from k8s.podsecurity import broken
from k8s.rules import STARTS_JOBS, every_fault
from k8s.schemas import needs_crds, releases
from k8s.sites import CONTAINERS, EXAMPLES, SITES, TARGETS, render_job
from orchestrator.errors import UserError

WIDE = """
name: wide-run-of-a-name-as-long-as-jobset-takes-it-48
resources:
  nodes: 4
  gpus_per_node: 8
  cpus_per_rank: 12
  memory: 1500GiB
  gpu_type: NVIDIA-H200
  time_limit: 12h
timeouts: {shutdown: 10m}
attempts: {failures: 5, requeues: 1000, deadline: 14d}
env: {NCCL_DEBUG: INFO, PROMPT: "costs $5 at $(date) {{ now }}"}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 100}
"""
ELASTIC = """
name: elastic
resources: {nodes: {min: 2, max: 4}, gpus_per_node: 1}
train: {model: {preset: nano}, data: {python_docs: true}, steps: 100}
"""
JOBS = {"wide": WIDE, "elastic": ELASTIC}
REFUSED = {"sweep": "sweep"}
"""Examples that need another target, and the word of the refusal that says why."""
SHELLS = {"sh", "bash", "dash", "/bin/sh", "/bin/bash", "env"}


@functools.cache
def objects(text: str, target: str, site: str) -> dict[str, dict[str, Any]]:
    """The rendered objects of a job by file."""
    files = render_job(text, target, SITES[site]).files
    found = {name: manifests(text) for name, text in files.items() if name.endswith(".yaml")}
    assert {len(documents) for documents in found.values()} == {1}, "one document a file"
    return {name: documents[0] for name, documents in found.items()}


def check(text: str, target: str, site: str) -> None:
    for name, manifest in objects(text, target, site).items():
        for release in releases():
            assert every_fault(manifest, release) == [], f"{name}, Kubernetes {release}"


@needs_crds
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_gives_valid_objects_or_is_refused(example: Any, target: str) -> None:
    text = example.read_text("utf-8")
    if example.stem in REFUSED:
        with pytest.raises(UserError, match=REFUSED[example.stem]):
            render_job(text, target, SITES["neutral"])
        return
    check(text, target, "neutral")


@needs_crds
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", JOBS)
def test_each_site_gives_valid_objects(job: str, target: str, site: str) -> None:
    check(JOBS[job], target, site)


PODS = [
    pytest.param(template, target, site, id=f"{job}-{target}-{site}-{template.path}")
    for job, text in JOBS.items()
    for target in TARGETS
    for site in SITES
    for manifest in objects(text, target, site).values()
    for template in pod_templates(manifest)
]
each_pod = pytest.mark.parametrize(("pod", "target", "site"), PODS)


@each_pod
def test_a_pod_passes_the_level_that_its_site_names(
    pod: PodTemplate, target: str, site: str
) -> None:
    level = SITES[site].get("pod_security", "restricted")
    if level != "none":
        assert broken(pod.spec, level) == []
        assert broken(pod.spec, "baseline") == []


@each_pod
def test_a_pod_runs_the_launcher_alone_and_by_words(
    pod: PodTemplate, target: str, site: str
) -> None:
    [container] = pod.spec["containers"]
    assert container["name"] == CONTAINERS.get(target, "node")
    words = [*container["command"], *container["args"]]
    assert all(isinstance(word, str) for word in words)
    assert not {word.rpartition("/")[2] for word in container["command"]} & SHELLS
    assert container["command"][-1].endswith(("orchestrate-node", "/node.py"))
    assert "initContainers" not in pod.spec
    assert "lifecycle" not in container, "a hook's time would count inside the grace period"
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & set(container)


@each_pod
def test_a_pod_has_time_to_save_a_checkpoint(pod: PodTemplate, target: str, site: str) -> None:
    args = pod.spec["containers"][0]["args"]
    shutdown_s = int(args[args.index("--shutdown-timeout-s") + 1])
    assert pod.spec["terminationGracePeriodSeconds"] >= shutdown_s + 30


@each_pod
def test_a_pod_has_shared_memory_with_a_limit(pod: PodTemplate, target: str, site: str) -> None:
    [container] = pod.spec["containers"]
    [name] = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == name]
    assert volume["emptyDir"]["medium"] == "Memory"
    size = quantity(volume["emptyDir"]["sizeLimit"])
    assert size is not None
    assert size > 64 * 2**20
    memory = quantity(container["resources"].get("limits", {}).get("memory"))
    assert memory is None or memory > size


@each_pod
def test_a_pod_on_its_nodes_network_still_finds_services(
    pod: PodTemplate, target: str, site: str
) -> None:
    on_the_node = pod.spec.get("hostNetwork", False)
    assert on_the_node == SITES[site].get("host_network", False)
    assert (pod.spec.get("dnsPolicy") == "ClusterFirstWithHostNet") == on_the_node


@each_pod
def test_a_pod_may_lock_memory_only_where_there_is_rdma(
    pod: PodTemplate, target: str, site: str
) -> None:
    context = pod.spec["containers"][0].get("securityContext", {})
    added = context.get("capabilities", {}).get("add", [])
    assert added == (["IPC_LOCK"] if SITES[site].get("rdma") else [])


@each_pod
def test_a_pod_is_left_alone_by_istio_and_has_no_token_that_it_needs_not(
    pod: PodTemplate, target: str, site: str
) -> None:
    assert pod.metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert pod.metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    account = pod.spec.get("serviceAccountName")
    assert account == SITES[site].get("service_account")
    assert account or pod.spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", JOBS)
def test_objects_of_a_run_have_its_labels_and_one_name(job: str, target: str, site: str) -> None:
    for manifest in objects(JOBS[job], target, site).values():
        metadata = manifest["metadata"]
        name = metadata["name"]
        assert metadata["labels"]["orchestrate.dev/run"] == name
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "orchestrate"
        assert metadata.get("namespace") == SITES[site].get("namespace")
        for key in SITES[site].get("labels", {}):
            assert key in metadata["labels"]
        if manifest["kind"] in STARTS_JOBS:
            content = metadata["annotations"]["orchestrate.dev/content-hash"]
            assert re.fullmatch("[0-9a-f]{16}", content)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", JOBS)
def test_a_run_ends_for_every_kind(job: str, target: str, site: str) -> None:
    """Restarts have a bound, and nothing is made again after it has been removed."""
    files = objects(JOBS[job], target, site)
    keys = {path.rpartition(".")[2]: value for m in files.values() for path, value in walk(m)}
    bounds = [keys[key] for key in ("backoffLimit", "maxRestarts") if key in keys]
    assert 0 < max(bounds) < 2**31
    if target == "trainjob":
        assert "ttlSecondsAfterFinished" not in keys
    if job == "wide":
        assert keys["activeDeadlineSeconds"] > 12 * 3600


@pytest.mark.parametrize("target", TARGETS)
def test_a_secret_is_named_and_never_there(target: str) -> None:
    files = objects(WIDE, target, "kueue")
    assert "Secret" not in {manifest["kind"] for manifest in files.values()}
    [variable] = [
        value
        for manifest in files.values()
        for path, value in walk(manifest)
        if isinstance(value, dict) and value.get("name") == "HF_TOKEN"
    ][:1]
    assert variable == {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
    }
