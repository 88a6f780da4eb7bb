"""spec: what a Kubernetes cluster would refuse is refused with its place, without a cluster."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.source import Document
from orchestrator.spec import JobSpec, resolve_job

TRAIN = {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 1}


def job(kubernetes: dict[str, Any], **keys: Any) -> JobSpec:
    data = {"name": "demo", "train": TRAIN, **keys, "clusters": {"k": {"kubernetes": kubernetes}}}
    return resolve_job(Document("f", "", data, {}), Cluster()).spec


class Cluster:
    """Just enough of a profile to choose the job's clusters.k."""

    name, target, runs_root, document, fabric = "k", "local", "/runs", None, None
    defaults: dict[str, Any] = {}  # noqa: RUF012
    slurm: dict[str, Any] = {}  # noqa: RUF012
    kubernetes: dict[str, Any] = {}  # noqa: RUF012


def faults(kubernetes: dict[str, Any], **keys: Any) -> tuple[Fault, ...]:
    with pytest.raises(FaultsError) as caught:
        job(kubernetes, **keys)
    return caught.value.faults


NFS = {"pod_security": "baseline"}
FREE = {"pod_security": "none"}
PVC = {"mount": "/data", "pvc": "c"}

GOOD: list[dict[str, Any]] = [
    {},
    {"labels": {"team": "nlp", "app.kubernetes.io/part-of": "x", "example.org/a_b.c": ""}},
    {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "a": "é \n {}"}},
    {"extra_resources": {"rdma/ib": "1", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "1Gi"}},
    {"extra_resources": {"ephemeral-storage": "500G"}},
    {"gpu_resource": "nvidia.com/mig-1g.10gb"},
    {"image": "registry.example.org:5000/a/b-c_d:v1.2@sha256:" + "a" * 64},
    {"image": "trainer"},
    {"context": "arn:aws:eks:eu-west-1:1:cluster/x", "namespace": "team-a"},
    {"tolerations": [{"operator": "Exists"}, {"key": "a", "operator": "Equal", "value": "b"}]},
    {"node_affinity": [{"key": "a", "values": ["b"]}, {"key": "c", "operator": "Exists"}]},
    {"node_affinity": [{"key": "a", "operator": "Gt", "values": ["4"]}]},
    {"topology_spread": [{"topology_key": "kubernetes.io/hostname"}]},
    {"volumes": {"data": PVC, "more": PVC | {"mount": "/data/more"}}},
    {"volumes": {"data": {"mount": "/tmp/x", "empty_dir": True}}},
    {"volumes": {"bucket": {"mount": "/b", "csi": "gcsfuse.csi.storage.gke.io"}}},
    FREE | {"rdma": True, "host_network": True, "run_as_user": 0},
    FREE | {"volumes": {"d": {"mount": "/d", "host_path": "/local/disk"}}},
    NFS | {"runs": {"nfs": "10.0.0.1:/export/runs"}},
    {"kueue": {"queue": "q", "topology": "required", "topology_level": "example.org/rack"}},
    {"kueue": {"queue": "q", "topology": "unconstrained"}},
    {"volcano": {"queue": "q"}, "kueue": None},
    {"secret_env": {"HF_TOKEN": {"name": "hub", "key": "token"}}},
    {"run_as_user": None, "run_as_group": None, "fs_group": None},
]


@pytest.mark.parametrize("kubernetes", GOOD, ids=repr)
def test_what_a_cluster_takes_is_taken(kubernetes: dict[str, Any]) -> None:
    job(kubernetes)


# Keys, where the fault is below kubernetes, and words of its message or fix.
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"labels": {"a b": "x"}}, "labels.a b", "prefix/name"),
    ({"labels": {"a": "x y"}}, "labels.a", "annotations"),
    ({"labels": {"a": "x" * 64}}, "labels.a", "63"),
    ({"labels": {"x" * 64: "a"}}, "labels." + "x" * 64, "63"),
    ({"labels": {"a": 1}}, "labels.a", 'put it in quotes: "1"'),
    ({"labels": {"batch.kubernetes.io/x": "a"}}, "labels.batch.kubernetes.io/x", "Kubernetes"),
    ({"labels": {"k8s.io/x": "a"}}, "labels.k8s.io/x", "set by Kubernetes"),
    ({"labels": {"orchestrate.dev/run": "a"}}, "labels.orchestrate.dev/run", "the launcher"),
    ({"labels": {"app.kubernetes.io/name": "a"}}, "labels.app.kubernetes.io/name", "launcher"),
    (
        {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "labels.kueue.x-k8s.io/queue-name",
        "kubernetes.kueue.queue",
    ),
    ({"annotations": {"a b": ""}}, "annotations.a b", "prefix/name"),
    ({"annotations": {"a": "x" * 150_000, "b": "é" * 75_000}}, "annotations", "256 KiB"),
    ({"labels": {"a": {"b": "c"}}}, "labels.a", "--set 'PATH={NAME: VALUE}'"),
    ({"annotations": {"api-token": "x"}}, "annotations.api-token", "looks like a secret"),
    (
        {"annotations": {"orchestrate.dev/content-hash": "x"}},
        "annotations.orchestrate.dev/content-hash",
        "launcher",
    ),
    ({"extra_resources": {"rdma/ib": "1.5"}}, "extra_resources.rdma/ib", "whole ones only"),
    ({"extra_resources": {"rdma/ib": "0"}}, "extra_resources.rdma/ib", "from 1"),
    ({"extra_resources": {"rdma/ib": 1}}, "extra_resources.rdma/ib", '"1"'),
    ({"extra_resources": {"memory": "1Gi"}}, "extra_resources.memory", "resources.memory"),
    ({"extra_resources": {"hugepages-2Mi": "512m"}}, "extra_resources.hugepages-2Mi", "milli"),
    ({"extra_resources": {"ephemeral-storage": "1g"}}, "extra_resources.ephemeral-storage", "10Gi"),
    ({"extra_resources": {"gpus": "1"}}, "extra_resources.gpus", "domain/name"),
    (
        {"extra_resources": {"x.kubernetes.io/a": "1"}},
        "extra_resources.x.kubernetes.io/a",
        "domain",
    ),
    (
        {"extra_resources": {"nvidia.com/gpu": "1"}},
        "extra_resources.nvidia.com/gpu",
        "resources.gpus_per_node",
    ),
    ({"gpu_resource": "gpu"}, "gpu_resource", "domain/name"),
    ({"image": "Trainer:1"}, "image", "registry/name:tag"),
    ({"image": "-v /:/host"}, "image", "registry/name:tag"),
    ({"image": "a b"}, "image", "registry/name:tag"),
    ({"namespace": "Team"}, "namespace", "lower-case"),
    ({"namespace": "a.b"}, "namespace", "lower-case"),
    ({"image_pull_secrets": ["a", "B"]}, "image_pull_secrets[1]", "is not a"),
    ({"service_account": "x" * 254}, "service_account", "name of an object"),
    ({"python": "-m"}, "python", "path"),
    ({"workdir": "work"}, "workdir", "absolute path"),
    ({"pack": "a b"}, "pack", "name of a label"),
    ({"node_selector": {"a": "b c"}}, "node_selector.a", "value of a label"),
    ({"tolerations": [{"value": "x"}]}, "tolerations[0].value", "Exists"),
    ({"tolerations": [{"operator": "Equal"}]}, "tolerations[0].operator", "without a key"),
    ({"tolerations": [{"effect": "Never"}]}, "tolerations[0].effect", "NoSchedule"),
    ({"node_affinity": [{"key": "a"}]}, "node_affinity[0].values", "at least one"),
    ({"node_affinity": [{"values": ["a"]}]}, "node_affinity[0].key", "required"),
    (
        {"node_affinity": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
        "node_affinity[0].values",
        "no values",
    ),
    (
        {"node_affinity": [{"key": "a", "operator": "Lt", "values": ["b"]}]},
        "node_affinity[0].values",
        "whole number",
    ),
    ({"topology_spread": [{"topology_key": "a"}] * 2}, "topology_spread[1]", "second"),
    ({"volumes": {"A": PVC}}, "volumes.A", "name of a volume"),
    ({"volumes": {"orchestrate-runs": PVC}}, "volumes.orchestrate-runs", "launcher"),
    ({"volumes": {"a": {"pvc": "c"}}}, "volumes.a", "without a mount"),
    ({"volumes": {"a": {"mount": "/a"}}}, "volumes.a", "without a source"),
    ({"volumes": {"a": PVC | {"secret": "s"}}}, "volumes.a.secret", "one place"),
    ({"volumes": {"a": PVC | {"mount": "data"}}}, "volumes.a.mount", "absolute"),
    ({"volumes": {"a": PVC | {"mount": "/a:b"}}}, "volumes.a.mount", "colon"),
    ({"volumes": {"a": PVC, "b": PVC | {"mount": "//data/"}}}, "volumes.b.mount", "volume a"),
    ({"volumes": {"a": PVC | {"mount": "/"}}}, "volumes.a.mount", "/orchestrate"),
    ({"volumes": {"a": PVC | {"mount": "/dev"}}}, "volumes.a.mount", "/dev/shm"),
    ({"volumes": {"a": PVC | {"mount": "/tmp/"}}}, "volumes.a.mount", "/tmp"),
    ({"volumes": {"a": PVC | {"mount": "/orchestrate/x"}}}, "volumes.a.mount", "/orchestrate"),
    ({"volumes": {"a": PVC | {"csi_secret": "x"}}}, "volumes.a.csi_secret", "csi only"),
    (
        {"volumes": {"a": {"mount": "/a", "csi": "d", "csi_attributes": {"password": "x"}}}},
        "volumes.a.csi_attributes.password",
        "csi_secret",
    ),
    (NFS | {"volumes": {"a": {"mount": "/a", "nfs": "server"}}}, "volumes.a.nfs", "SERVER:/PATH"),
    (
        FREE | {"volumes": {"a": {"mount": "/a", "host_path": "/b/../c"}}},
        "volumes.a.host_path",
        "..",
    ),
    ({"runs": {"pvc": "runs", "mount": "/x"}}, "runs.mount", "runs_root"),
    ({"runs": {"pvc": "runs", "read_only": True}}, "runs.read_only", "written"),
    ({"runs": {"secret": "s"}}, "runs.secret", "written"),
    ({"runs": {"pvc": "runs", "empty_dir": True}}, "runs.empty_dir", "one place"),
    ({"rdma": True}, "rdma", "pod_security: none"),
    (NFS | {"rdma": True}, "rdma", "IPC_LOCK"),
    (NFS | {"host_network": True}, "host_network", "pod_security: none"),
    (NFS | {"runs": {"host_path": "/x"}}, "runs.host_path", "pod_security: none"),
    ({"runs": {"nfs": "s:/x"}}, "runs.nfs", "pod_security: baseline"),
    ({"run_as_user": 0}, "run_as_user", "pod_security: baseline"),
    ({"run_as_user": 2**31}, "run_as_user", "at most"),
    ({"kueue": {"queue": "q"}, "volcano": {}}, "volcano", "one alone"),
    ({"volcano": {}, "coscheduling": {}}, "coscheduling", "one alone"),
    ({"kueue": {}}, "kueue", "queue: NAME"),
    ({"kueue": {"queue": "q"}, "suspend": True}, "suspend", "Kueue"),
    ({"kueue": {"queue": "q", "topology": "required"}}, "kueue.topology", "topology_level"),
    ({"kueue": {"queue": "q", "topology_level": "a"}}, "kueue.topology_level", "topology"),
    ({"kueue": {"queue": "q" * 64}}, "kueue.queue", "63"),
    ({"secret_env": {"RANK": {"name": "a", "key": "b"}}}, "secret_env.RANK", "launcher"),
    ({"secret_env": {"ORCHESTRATE_X": {"name": "a", "key": "b"}}}, "secret_env.ORCHESTRATE_X", ""),
    ({"secret_env": {"A-B": {"name": "a", "key": "b"}}}, "secret_env.A-B", "underscores"),
    ({"secret_env": {"A": {"name": "a", "key": "b/c"}}}, "secret_env.A.key", "key in a Secret"),
    ({"secret_env": {"A": {"key": "b"}}}, "secret_env.A.name", "required"),
    ({"trainjob_version": "1.9"}, "trainjob_version", "2.1"),
    ({"shm_size": "512m"}, "shm_size", "milli"),
]


@pytest.mark.parametrize(("kubernetes", "path", "words"), BAD, ids=lambda v: str(v)[:60])
def test_what_a_cluster_refuses_is_refused_with_its_place(
    kubernetes: dict[str, Any], path: str, words: str
) -> None:
    (fault,) = faults(kubernetes)
    assert fault.key == f"clusters.k.kubernetes.{path}"
    assert words in f"{fault.message}; {fault.fix}"


def test_what_does_not_go_with_the_rest_of_the_job() -> None:
    resources = {"memory": "1GiB", "gpus_per_node": 1, "gpu_type": "H200"}
    found = faults(
        {
            "shm_size": "2GiB",
            "node_selector": {"nvidia.com/gpu.product": "A100"},
            "secret_env": {"A": {"name": "a", "key": "b"}, "B": {"name": "a", "key": "b"}},
        },
        resources=resources,
        env={"A": "1"},
        network={"env": {"B": "1"}},
    )
    assert {fault.key.removeprefix("clusters.k.kubernetes.") for fault in found} == {
        "node_selector.nvidia.com/gpu.product",
        "shm_size",
        "secret_env.A",
        "secret_env.B",
    }


def test_all_faults_are_told_at_once() -> None:
    found = faults(
        {
            "labels": {"a b": "x", "c": "d e", "f": 1},
            "image": "A",
            "extra_resources": {"a": "1", "b/c": "x"},
            "volumes": {"v": {"mount": "x", "pvc": "Y"}},
            "namespace": "Z",
        }
    )
    assert len(found) == 9


@pytest.mark.parametrize("memory", ["80000m", "80m", "1.5m", "1m"])
def test_a_size_in_thousandths_of_a_byte_is_refused(memory: str) -> None:
    (fault,) = faults({}, resources={"memory": memory})
    assert "milli" in fault.message
    assert "MiB" in fault.fix


# Strings near the rules, so that both ends are met.
NAMES = st.text("abzAZ09-._/ é\n", max_size=70) | st.from_regex(
    r"\A[a-z0-9]([a-z0-9.-]{0,20}/)?[A-Za-z0-9._-]{0,66}\Z"
)


def is_qualified(name: str) -> bool:
    """kubernetes.io, "Labels and Selectors": syntax and character set, in other words."""
    prefix, slash, rest = name.rpartition("/")
    parts = prefix.split(".") if slash else []
    good = all(len(p) > 0 and re.fullmatch("[a-z0-9-]+", p) and p.strip("-") == p for p in parts)
    ends = rest[:1] + rest[-1:]
    return bool(
        good
        and len(prefix) <= 253
        and 0 < len(rest) <= 63
        and re.fullmatch(r"[A-Za-z0-9._-]+", rest)
        and ends.isalnum()
    )


@settings(deadline=None)
@given(NAMES, NAMES)
def test_labels_are_taken_exactly_where_kubernetes_takes_them(name: str, value: str) -> None:
    taken = is_qualified(name) and (value == "" or ("/" not in value and is_qualified(value)))
    try:
        selector = job({"node_selector": {name: value}}).kubernetes.node_selector
    except FaultsError:
        assert not taken
    else:
        assert taken
        assert selector == {name: value}


@settings(deadline=None)
@given(st.text(max_size=200))
@example("$${HOME} ${HOME} $(HOME) {{ x }}\n\"'")
def test_an_annotation_is_carried_unchanged(text: str) -> None:
    spec = job({"annotations": {"a": text}})
    as_written = text.replace("$${", "${")  # the job file's own form of ${
    assert spec.kubernetes.annotations == {"a": as_written}
