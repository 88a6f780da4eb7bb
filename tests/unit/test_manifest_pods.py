"""The pods of the manifests: resources, places, users, volumes, variables, queues."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from objects import TARGETS, Object, container, job, main, objects, option, plan_of, pods
from orchestrator.render import render
from orchestrator.volumes import quantity

every_kind = pytest.mark.parametrize("target", TARGETS)
SELECTOR = {"matchLabels": {"orchestrate.dev/run": "run"}}
BIG = job(
    resources={"gpus_per_node": 2, "ranks_per_node": 2, "cpus_per_rank": 6, "memory": "96GiB"}
)


def pod(target: str = "job", given: dict[str, Any] | None = None, **kubernetes: Any) -> Object:
    """The pod template of node 0."""
    return pods(target, given or job(), **kubernetes)[0]


def volume(template: Object, mount: str) -> tuple[Object, Object]:
    """The volume at `mount` without its name, and the mount."""
    (found,) = [m for m in container(template)["volumeMounts"] if m["mountPath"] == mount]
    (source,) = [v for v in template["spec"]["volumes"] if v["name"] == found["name"]]
    return {key: value for key, value in source.items() if key != "name"}, found


@every_kind
@pytest.mark.case("L40")
def test_shared_memory_has_the_size_that_is_asked_for(target: str) -> None:
    for template in pods(target, shm_size="8GiB"):
        source, _ = volume(template, "/dev/shm")
        assert source == {"emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    source, _ = volume(pod(target), "/dev/shm")
    assert source["emptyDir"]["sizeLimit"] == "2Gi"


@every_kind
def test_what_a_pod_takes_is_asked_for(target: str) -> None:
    for template in pods(target, BIG, extra_resources={"rdma/ib": "2"}, gpu_resource="amd.com/gpu"):
        resources = container(template)["resources"]
        limits = {"amd.com/gpu": "2", "memory": "96Gi", "rdma/ib": "2"}
        assert resources == {"limits": limits, "requests": {**limits, "cpu": "12"}}


def test_without_memory_and_gpus_there_is_no_limit() -> None:
    assert container(pod())["resources"] == {"requests": {"cpu": "2"}}


@given(st.integers(min_value=1, max_value=2**60))
def test_a_quantity_is_exact(size_bytes: int) -> None:
    text = quantity(size_bytes)
    units = {"Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
    unit = units.get(text[-2:], 1)
    assert int(text.rstrip("GMKi")) * unit == size_bytes


@every_kind
def test_the_levels_of_pod_security(target: str) -> None:
    template = pod(target)
    assert template["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(template)["securityContext"] == {
        "capabilities": {"drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
    }
    own = {"run_as_user": None, "run_as_group": None, "fs_group": None}
    template = pod(target, pod_security="none", **own)
    assert "securityContext" not in template["spec"]
    assert "securityContext" not in container(template)
    template = pod(target, pod_security="baseline", run_as_user=0)
    assert "runAsNonRoot" not in template["spec"]["securityContext"]
    assert container(template)["securityContext"] == {"allowPrivilegeEscalation": False}


def test_memory_is_locked_only_for_rdma() -> None:
    template = pod(pod_security="none", rdma=True)
    assert container(template)["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


@every_kind
def test_a_secret_takes_the_place_of_what_the_launcher_sets(target: str) -> None:
    """Server-side apply refuses a list that has a name twice."""
    set_by_launcher = ("HOME", "USER", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "NCCL_IB_HCA")
    secrets = {name: {"name": "keys", "key": "k"} for name in (*set_by_launcher, "A", "Z")}
    network = {"fabric": "infiniband", "backend": "nccl"}
    given = job(resources={"gpus_per_node": 2, "cpus_per_rank": 2}, network=network)
    for template in pods(target, given, secret_env=secrets, pod_security="none"):
        variables = container(template)["env"]
        names = [variable["name"] for variable in variables]
        assert len(set(names)) == len(names)
        found = {v["name"]: v["valueFrom"] for v in variables if v["name"] in secrets}
        assert found == {name: {"secretKeyRef": secrets[name]} for name in secrets}
    plain = container(pods(target, given, pod_security="none")[0])["env"]
    assert set(set_by_launcher) <= {variable["name"] for variable in plain}


@every_kind
def test_on_the_nodes_network_a_run_has_a_port_of_its_own(target: str) -> None:
    template = pod(target, host_network=True, pod_security="none")
    assert template["spec"]["hostNetwork"] is True
    assert template["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    (port,) = container(template)["ports"]
    assert port["name"] == ("pytorchjob-port" if target == "pytorchjob" else "orchestrate")
    assert 20000 <= port["containerPort"] < 30000  # where Services have none
    assert option(template, "--port") == str(port["containerPort"])
    (port,) = container(pod(target))["ports"]
    assert port["containerPort"] == 23456


def test_the_api_is_out_of_reach_unless_an_account_is_named() -> None:
    assert pod()["spec"]["automountServiceAccountToken"] is False
    named = pod(service_account="trainer")["spec"]
    assert named["serviceAccountName"] == "trainer"
    assert "automountServiceAccountToken" not in named
    assert named["enableServiceLinks"] is False


@every_kind
def test_the_times_nest(target: str) -> None:
    limited = job(resources={"time_limit": "1h"}, timeouts={"shutdown": "100s"})
    for template in pods(target, limited):
        assert option(template, "--shutdown-timeout-s") == "100"
        assert template["spec"]["terminationGracePeriodSeconds"] == 160
        assert option(template, "--time-limit-s") == "3600"
        start_s = int(option(template, "--start-timeout-s") or 0)
        assert start_s == 603  # 10 minutes, and a second for each node
        assert template["spec"]["activeDeadlineSeconds"] == 3600 + start_s + 60
    assert "activeDeadlineSeconds" not in pod(target)["spec"]


def test_where_the_pods_may_run() -> None:
    spec = pod(
        given=job(resources={"gpus_per_node": 2, "gpu_type": "H200"}),
        node_selector={"pool": "a"},
        node_affinity=[{"key": "zone", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"}],
        tolerations=[{"key": "gpu", "effect": "NoSchedule"}, {"operator": "Exists"}],
        topology_spread=[{"topology_key": "host", "max_skew": 2}],
        pack="rack",
        priority_class="high",
        runtime_class="nvidia",
    )["spec"]
    assert spec["nodeSelector"] == {"pool": "a", "nvidia.com/gpu.product": "H200"}
    rules = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = rules["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
        {"key": "x", "operator": "Exists"},
    ]
    together = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert together == [{"topologyKey": "rack", "labelSelector": SELECTOR}]
    assert spec["tolerations"] == [
        {"operator": "Exists", "key": "gpu", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ]
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["labelSelector"]) == (2, SELECTOR)
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("high", "nvidia")


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"pvc": "data"}, {"persistentVolumeClaim": {"claimName": "data"}}),
        ({"host_path": "/data"}, {"hostPath": {"path": "/data", "type": "Directory"}}),
        ({"nfs": "server:/a/b"}, {"nfs": {"server": "server", "path": "/a/b"}}),
        ({"secret": "keys"}, {"secret": {"secretName": "keys"}}),
        ({"config_map": "settings"}, {"configMap": {"name": "settings"}}),
        ({"empty_dir": True}, {"emptyDir": {}}),
        ({"csi": "s3.example.org"}, {"csi": {"driver": "s3.example.org", "readOnly": False}}),
    ],
    ids=lambda part: next(iter(part)),
)
def test_a_volume_of_each_kind(given: dict[str, Any], source: Object) -> None:
    volumes = {"data": {"mount": "/data", **given}}
    template = pod(volumes=volumes, pod_security="none")
    assert volume(template, "/data") == (source, {"name": "data", "mountPath": "/data"})


def test_an_object_store_is_mounted_with_its_attributes_and_secret() -> None:
    bucket = {"csi": "s3.x", "csi_attributes": {"bucket": "b"}, "csi_secret": "keys"}
    mounted = {"mount": "/data", "read_only": True, **bucket}
    source, mount = volume(pod(volumes={"bucket": mounted}), "/data")
    assert mount["readOnly"] is True
    assert source["csi"] == {
        "driver": "s3.x",
        "readOnly": True,
        "volumeAttributes": {"bucket": "b"},
        "nodePublishSecretRef": {"name": "keys"},
    }


def test_the_runs_are_where_the_cluster_keeps_them() -> None:
    template = pod(runs={"pvc": "team"})
    assert volume(template, "/runs")[0] == {"persistentVolumeClaim": {"claimName": "team"}}
    assert option(template, "--run-dir") == "/runs/run"


def test_secrets_are_named_and_never_written() -> None:
    template = pod(secret_env={"WANDB": {"name": "wandb", "key": "api-key"}})
    (variable,) = [v for v in container(template)["env"] if v["name"] == "WANDB"]
    reference = {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    assert variable == {"name": "WANDB", "valueFrom": reference}


def test_the_jobs_own_variables_win_over_the_launchers() -> None:
    variables = {v["name"]: v.get("value") for v in container(pod())["env"]}
    assert (variables["HOME"], variables["USER"]) == ("/tmp", "orchestrate")
    names = [v["name"] for v in container(pod(given=job(env={"HOME": "/home/me"})))["env"]]
    assert len(names) == len(set(names))
    variables = {
        v["name"]: v.get("value") for v in container(pod(given=job(env={"HOME": "/h"})))["env"]
    }
    assert variables["HOME"] == "/h"


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_texts_get_through_yaml_unchanged(text: str) -> None:
    plan = plan_of("job", annotations={"example.org/note": text})
    written = yaml.safe_load(render(plan).files["job.yaml"])
    assert written["metadata"]["annotations"]["example.org/note"] == text


def test_kueue_finds_its_queue_on_the_object_and_the_topology_on_the_pods() -> None:
    queue = {"queue": "q", "priority": "p", "topology": "preferred", "topology_level": "rack"}
    for target in TARGETS:
        labels = main(target, kueue=queue)["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "q"
        assert labels["kueue.x-k8s.io/priority-class"] == "p"
        metadata = pod(target, kueue=queue)["metadata"]
        assert metadata["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == "rack"
        assert "kueue.x-k8s.io/queue-name" not in metadata["labels"]
    free = pod(kueue={"queue": "q", "topology": "unconstrained"})["metadata"]["annotations"]
    assert free["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


@pytest.mark.parametrize("target", ["job", "jobset"])
def test_a_gang_is_a_pod_group_of_ours_where_the_kind_has_none(target: str) -> None:
    found = objects(target, volcano={"queue": "q", "priority_class": "p"})
    group = found["PodGroup"]
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {"minMember": 3, "queue": "q", "priorityClassName": "p"}
    template = pod(target, volcano={"queue": "q"})
    assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "run"
    assert template["spec"]["schedulerName"] == "volcano"
    found = objects(target, coscheduling={"schedule_timeout": "5m", "scheduler": "gangs"})
    group = found["PodGroup"]
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"] == {"minMember": 3, "scheduleTimeoutSeconds": 300}
    template = pod(target, coscheduling={"scheduler": "gangs"})
    assert template["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "run"
    assert template["spec"]["schedulerName"] == "gangs"


def test_the_operators_make_the_groups_of_their_kinds() -> None:
    volcano: dict[str, Any] = {"volcano": {"queue": "q", "priority_class": "p"}}
    policy = main("pytorchjob", **volcano)["spec"]["runPolicy"]["schedulingPolicy"]
    assert policy == {"minAvailable": 3, "queue": "q", "priorityClass": "p"}
    runtime = objects("trainjob", **volcano)["TrainingRuntime"]["spec"]
    assert runtime["podGroupPolicy"] == {"volcano": {}}
    annotations = runtime["template"]["metadata"]["annotations"]
    assert annotations == {"scheduling.volcano.sh/queue-name": "q"}
    assert pod("trainjob", **volcano)["spec"]["priorityClassName"] == "p"
    gangs: dict[str, Any] = {"coscheduling": {"schedule_timeout": "5m"}}
    policy = main("pytorchjob", **gangs)["spec"]["runPolicy"]["schedulingPolicy"]
    assert policy == {"minAvailable": 3, "scheduleTimeoutSeconds": 300}
    runtime = objects("trainjob", **gangs)["TrainingRuntime"]["spec"]
    assert runtime["podGroupPolicy"] == {"coscheduling": {"scheduleTimeoutSeconds": 300}}
    runtime = objects("trainjob", coscheduling={})["TrainingRuntime"]["spec"]
    assert runtime["podGroupPolicy"] == {"coscheduling": {}}
    assert "PodGroup" not in objects("trainjob", **volcano)
