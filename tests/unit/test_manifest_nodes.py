"""Which pod is which node, how it is started, and where the nodes meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from objects import (
    ELASTIC,
    JOB,
    LIMITED,
    TARGETS,
    container,
    job,
    job_specs,
    main,
    objects,
    objects_of,
    option,
    plan_of,
    pods,
    templates,
)
from orchestrator.render import NODE_PY
from trainer import node

every_kind = pytest.mark.parametrize("target", TARGETS)
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
REPLICA = "metadata.labels['training.kubeflow.org/replica-index']"


@pytest.mark.parametrize("target", ["job", "jobset", "trainjob"])
def test_a_node_of_an_indexed_job_knows_its_number(target: str) -> None:
    (template,) = pods(target)
    (variable,) = [v for v in container(template)["env"] if v["name"] == "ORCHESTRATE_NODE_RANK"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
    assert option(template, "--node-rank-from") == "ORCHESTRATE_NODE_RANK"
    (spec,) = job_specs(objects(target))
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    assert spec["completionMode"] == "Indexed"


def test_the_workers_of_a_pytorchjob_come_after_the_master() -> None:
    master, worker = pods("pytorchjob")
    ranks = [container(t)["env"][1] for t in (master, worker)]
    assert ranks[0] == {"name": "ORCHESTRATE_NODE_RANK", "value": "0"}
    assert ranks[1]["valueFrom"]["fieldRef"]["fieldPath"] == REPLICA
    assert option(master, "--node-rank-offset") is None
    assert option(worker, "--node-rank-offset") == "1"
    specs = main("pytorchjob")["spec"]["pytorchReplicaSpecs"]
    assert [specs[role]["replicas"] for role in ("Master", "Worker")] == [1, 2]
    assert main("pytorchjob")["spec"]["nprocPerNode"] == "2"


def test_a_pytorchjob_of_one_node_is_a_master() -> None:
    spec = main("pytorchjob", job(resources={"nodes": 1}))["spec"]
    assert spec["pytorchReplicaSpecs"].keys() == {"Master"}


@pytest.mark.parametrize(
    ("target", "given", "head"),
    [
        ("job", JOB, "run-0.run"),
        ("jobset", JOB, "run-node-0-0.run"),
        ("trainjob", JOB, "run-node-0-0.run"),
        ("pytorchjob", JOB, "run-master-0"),
        ("pytorchjob", ELASTIC, "run-worker-0"),
    ],
)
def test_the_nodes_meet_at_a_name_that_the_kind_publishes(
    target: str, given: dict[str, Any], head: str
) -> None:
    for template in pods(target, given):
        assert option(template, "--head") == head
        assert option(template, "--address") == "$(ORCHESTRATE_POD_IP)"
        address, _ = container(template)["env"][:2]
        assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_names_are_published_before_pods_are_ready() -> None:
    found = objects("job")
    service = found["Service"]["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert service["clusterIP"] == "None"
    (template,) = templates(found)
    assert template["spec"]["subdomain"] == found["Service"]["metadata"]["name"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert main("jobset")["spec"]["network"]["publishNotReadyAddresses"] is True


@every_kind
def test_the_arguments_are_a_list_and_the_launcher_the_first_process(target: str) -> None:
    for template in pods(target):
        assert container(template)["command"] == ["orchestrate-node"]
        assert all(isinstance(word, str) for word in container(template)["args"])


@every_kind
@pytest.mark.parametrize("given", [LIMITED, ELASTIC], ids=["limited", "elastic"])
def test_the_launcher_takes_the_arguments(
    target: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the pod of the highest number gives them."""
    plan = plan_of(target, given, workdir=str(tmp_path))
    template = templates(objects_of(replace(plan, runs_root=str(tmp_path))))[-1]
    last = 2 - int(option(template, "--node-rank-offset") or 0)
    monkeypatch.setenv("ORCHESTRATE_NODE_RANK", str(last))
    words = [
        word.replace("$(ORCHESTRATE_POD_IP)", "10.0.0.7") for word in container(template)["args"]
    ]
    args = node.parse(words)
    assert (args.node_rank, args.nnodes, args.nproc, args.address) == (2, 3, 2, "10.0.0.7")
    assert args.program[-2:] == ["--config", "/orchestrate/trainer.json"]
    assert (tmp_path / "run").is_dir()


@every_kind
def test_the_launcher_comes_from_the_config_map_for_a_foreign_image(target: str) -> None:
    found = objects(target, launcher_from="config-map", python="/opt/conda/bin/python")
    for template in templates(found):
        assert container(template)["command"] == ["/opt/conda/bin/python", "/orchestrate/node.py"]
    assert found["ConfigMap"]["data"]["node.py"] == NODE_PY.read_text("utf-8")


@every_kind
def test_an_elastic_run_takes_the_nodes_that_there_are(target: str) -> None:
    found = objects(target, ELASTIC)
    for template in templates(found):
        assert option(template, "--nnodes") == "3"
        assert option(template, "--sizes") == "1,3"
    for spec in job_specs(found):
        assert spec["successPolicy"]["rules"] == [{"succeededIndexes": "0"}]


def test_an_elastic_pytorchjob_has_workers_only() -> None:
    spec = main("pytorchjob", ELASTIC)["spec"]
    assert spec["pytorchReplicaSpecs"].keys() == {"Worker"}
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    policy = {"rdzvBackend": "c10d", "minReplicas": 1, "maxReplicas": 3}
    assert spec["elasticPolicy"] == policy
    (template,) = pods("pytorchjob", ELASTIC)
    assert option(template, "--node-rank-offset") is None


def test_a_trainjob_has_a_runtime_of_its_own_which_comes_first() -> None:
    found = objects("trainjob")
    runtime, trainjob = found["TrainingRuntime"], found["TrainJob"]
    assert runtime["metadata"]["name"] == trainjob["spec"]["runtimeRef"]["name"] == "run"
    assert trainjob["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert runtime["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"] == "-1"
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 3}  # nobody sets PET_*
    assert "trainer" not in trainjob["spec"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["metadata"]["labels"] == label
