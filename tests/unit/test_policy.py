"""policy: what a platform team does not allow is refused where it is written, all at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.policy import Policy, read_policy

JOB = """\
name: demo
resources:
  nodes: 4
  gpus_per_node: 8
train:
  model: {preset: nano}
  data: {python_docs: true}
  steps: 10
"""
CLUSTERS = """\
default: jobs
clusters:
  jobs:
    target: job
    runs_root: /runs
    kubernetes:
      runs: {pvc: runs}
      image: trainer:1
      namespace: prod
      labels: {cost-center: none}
      kueue: {queue: best-effort}
  batch:
    target: slurm
    slurm:
      partition: cpu, gpu-a
      container: {runtime: pyxis, image: 'nvcr.io#x/y:1'}
"""
STRICT = """\
version: 1
max_nodes: 2
max_gpus: 16
allowed_images: ["registry.example.org/*"]
required_labels: {team: '*', cost-center: cc-*}
allowed_queues: [gpu-*]
allowed_targets: [slurm, jobset]
allowed_namespaces: [team-*]
require_time_limit: true
"""


Cli = Callable[..., tuple[int, str, str]]
Faults = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command on job.yaml with c.yaml, in a folder with both and with strict.yaml."""
    (tmp_path / "job.yaml").write_text(JOB, "utf-8")
    (tmp_path / "c.yaml").write_text(CLUSTERS, "utf-8")
    (tmp_path / "strict.yaml").write_text(STRICT, "utf-8")
    monkeypatch.delenv("ORCHESTRATE_POLICY", raising=False)
    return lambda command, *options: cli(command, "job.yaml", "--clusters", "c.yaml", *options)


@pytest.fixture
def faults(run: Cli) -> Faults:
    """The faults of validate by key."""

    def faults_by_key(*options: str) -> dict[str, dict[str, Any]]:
        found = json.loads(run("validate", "--json", *options)[1])["faults"]
        return {fault["key"]: fault for fault in found}

    return faults_by_key


def write(folder: Path, **rules: Any) -> None:
    (folder / "p.yaml").write_text(json.dumps({"version": 1, **rules}), "utf-8")


def test_all_breaches_are_told_where_they_are_written_and_by_which_rule(faults: Faults) -> None:
    found = faults("--policy", "strict.yaml")
    places = {key: (f["file"], f["line"]) for key, f in found.items()}
    rules = {key: f["message"].rpartition(":")[2] for key, f in found.items()}
    assert {key: (*places[key], rules[key]) for key in found} == {
        "clusters.jobs.target": ("c.yaml", 4, "7, allowed_targets)"),
        "resources.nodes": ("job.yaml", 3, "2, max_nodes)"),
        "resources.gpus_per_node": ("job.yaml", 4, "3, max_gpus)"),
        "resources.time_limit": ("job.yaml", 3, "9, require_time_limit)"),
        "clusters.jobs.kubernetes.image": ("c.yaml", 8, "4, allowed_images)"),
        "clusters.jobs.kubernetes.kueue.queue": ("c.yaml", 11, "6, allowed_queues)"),
        "clusters.jobs.kubernetes.labels.team": ("c.yaml", 10, "5, required_labels)"),
        "clusters.jobs.kubernetes.labels.cost-center": ("c.yaml", 10, "5, required_labels)"),
        "clusters.jobs.kubernetes.namespace": ("c.yaml", 9, "8, allowed_namespaces)"),
    }


@pytest.mark.parametrize("command", ["validate", "render", "submit"])
def test_no_command_that_makes_files_passes_over_a_policy(command: str, run: Cli) -> None:
    code, _, err = run(command, "--cluster", "batch", "--policy", "strict.yaml")
    assert code == 2
    assert "strict.yaml:2, max_nodes" in err
    assert run("validate", "--cluster", "batch")[0] == 0


def test_what_explains_a_value_needs_no_leave(
    run: Cli, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_POLICY", "strict.yaml")
    assert run("validate")[0] == 2
    code, out, _ = cli("explain", "resources.nodes", "job.yaml", "--clusters", "c.yaml")
    assert (code, "value: 4" in out) == (0, True)


def test_a_value_of_the_command_line_is_shown_there(faults: Faults, tmp_path: Path) -> None:
    write(tmp_path, max_nodes=8)
    found = faults("--policy", "p.yaml", "--set", "resources.nodes=9")
    assert [(f["file"], f["line"]) for f in found.values()] == [("--set", 1)]


def test_the_policies_of_profile_variable_and_option_hold_together(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "site" / "rules"
    rules.mkdir(parents=True)
    text = CLUSTERS.replace("  jobs:", "  jobs:\n    policy: rules/site.yaml")
    (tmp_path / "site" / "c.yaml").write_text(text, "utf-8")
    (rules / "site.yaml").write_text("{version: 1, max_nodes: 3}", "utf-8")
    (tmp_path / "variable.yaml").write_text("{version: 1, max_gpus: 8}", "utf-8")
    write(tmp_path, require_time_limit=True)
    monkeypatch.setenv("ORCHESTRATE_POLICY", "variable.yaml")
    found = faults("--clusters", "site/c.yaml", "--policy", "p.yaml")
    assert {key: f["message"].partition("(")[2] for key, f in found.items()} == {
        "resources.nodes": "policy site/rules/site.yaml:1, max_nodes)",
        "resources.gpus_per_node": "policy variable.yaml:1, max_gpus)",
        "resources.time_limit": "policy p.yaml:1, require_time_limit)",
    }


# Rules, keys, and the keys of the faults.
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, [], []),
    ({"max_nodes": 4, "max_gpus": 32}, [], []),
    ({"max_gpus": 31}, [], ["resources.gpus_per_node"]),
    ({"max_nodes": 3}, ["resources.nodes={min: 1, max: 4}"], ["resources.nodes"]),
    ({"max_time_limit": "4h"}, [], ["resources.time_limit"]),
    ({"max_time_limit": "4h"}, ["resources.time_limit=4h1m"], ["resources.time_limit"]),
    ({"max_time_limit": "4h"}, ["resources.time_limit=4h"], []),
    ({"require_time_limit": True}, ["resources.time_limit=90d"], []),
    ({"require_time_limit": False}, [], []),
    ({"allowed_images": ["trainer:*"]}, [], []),
    ({"allowed_images": []}, [], ["clusters.jobs.kubernetes.image"]),
    ({"allowed_images": ["*"]}, ["kubernetes.image=null"], []),
    ({"allowed_images": ["trainer:*"]}, ["kubernetes.image=null"], ["kubernetes.image"]),
    ({"allowed_images": ["trainer:*"]}, ["kubernetes.image=x/trainer:1"], ["kubernetes.image"]),
    (
        {"allowed_images": ["trainer:*"]},
        ["kubernetes.image=trainer:1", "kubernetes.sidecars={tcpx-daemon: {image: x/y}}"],
        ["kubernetes.sidecars.tcpx-daemon.image"],
    ),
    ({"required_labels": ["cost-center"]}, [], []),
    ({"required_labels": {"cost-center": "[a-n]one"}}, [], []),
    ({"allowed_queues": ["best-*", "other"]}, [], []),
    ({"allowed_queues": ["*"]}, ["kubernetes.kueue=null"], ["kubernetes.kueue.queue"]),
    (
        {"allowed_queues": ["a"]},
        ["kubernetes.kueue=null", "kubernetes.volcano={queue: b}"],
        ["kubernetes.volcano.queue"],
    ),
    ({"allowed_namespaces": ["prod"]}, [], []),
    ({"allowed_namespaces": ["*"]}, ["kubernetes.namespace=null"], ["kubernetes.namespace"]),
    ({"allowed_targets": ["job"]}, [], []),
]


@pytest.mark.parametrize(("rules", "sets", "keys"), CASES, ids=str)
def test_each_rule(
    faults: Faults, tmp_path: Path, rules: dict[str, Any], sets: list[str], keys: list[str]
) -> None:
    write(tmp_path, **rules)
    options = [word for key in sets for word in ("--set", key)]
    assert list(faults("--policy", "p.yaml", *options)) == keys


def test_on_slurm_queues_are_partitions_and_images_those_of_containers(
    faults: Faults, tmp_path: Path
) -> None:
    others: dict[str, list[str]] = {"required_labels": ["team"], "allowed_namespaces": []}
    write(tmp_path, allowed_queues=["gpu-*"], allowed_images=["x"], **others)
    found = faults("--cluster", "batch", "--policy", "p.yaml")
    assert set(found) == {"clusters.batch.slurm.partition", "clusters.batch.slurm.container.image"}
    assert '"cpu"' in found["clusters.batch.slurm.partition"]["message"]


def test_a_policy_that_is_not_there_stops_everything(run: Cli, tmp_path: Path) -> None:
    code, _, err = run("validate", "--policy", "gone.yaml")
    assert (code, err) == (2, f"policy {tmp_path / 'gone.yaml'}: no such file; check the path\n")


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("max_nodes: 2", "version", "add `version: 1`"),
        ("{version: 2}", "version", ""),
        ("{version: 1, max_node: 2}", "max_node", 'did you mean "max_nodes"?'),
        ("{version: 1, max_nodes: 0}", "max_nodes", ""),
        ("{version: 1, max_time_limit: 4}", "max_time_limit", "write 4s, 4m or 4h"),
        ("{version: 1, allowed_targets: [k8s]}", "allowed_targets[0]", ""),
        ("{version: 1, allowed_images: x}", "allowed_images", ""),
        ("{version: 1, required_labels: [a, 1]}", "required_labels[1]", "put it in quotes"),
    ],
)
def test_a_faulty_policy_is_told_with_its_place(
    text: str, key: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text, "utf-8")
    (fault,) = faults_of(path)
    assert (fault.key, fault.fix, fault.file) == (key, fix, "p.yaml")
    assert fault.position is not None


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 3, -1, 2.5, "", "x", "4h", "job"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*Policy.model_fields, "x"]), VALUES))
def test_any_policy_is_read_or_told_in_words(
    tmp_path_factory: pytest.TempPathFactory, rules: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(json.dumps(rules), "utf-8")
    for fault in faults_of(path):
        assert "Input should" not in fault.message


def faults_of(path: Path) -> tuple[Fault, ...]:
    """The faults of a policy; none for a good one."""
    try:
        read_policy(path, "p.yaml")
    except FaultsError as error:
        return error.faults
    return ()
