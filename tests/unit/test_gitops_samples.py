"""The samples of k8s/gitops do what they say: scripts are run, files compared with what is made."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from k8s.kubectl import program
from orchestrator.cli import main

SAMPLES = Path(__file__).resolve().parent.parent.parent / "k8s" / "gitops"
FILES = sorted(path.name for path in SAMPLES.glob("*.yaml"))

# Conditions as each kind's controller writes them: type and reason of done, failed, suspended.
CONDITIONS = {
    "batch_Job": ("Complete", "Failed", "Suspended"),
    "jobset.x-k8s.io_JobSet": ("Completed", "Failed", "Suspended"),
    "kubeflow.org_PyTorchJob": ("Succeeded", "Failed", "Suspended"),
    "trainer.kubeflow.org_TrainJob": ("Complete", "Failed", "Suspended"),
}
Tree = dict[str, Any]


def documents(name: str) -> list[Tree]:
    return list(yaml.safe_load_all((SAMPLES / name).read_text("utf-8")))


def health(kind: str, obj: Tree) -> tuple[str, str]:
    """What Argo CD makes of an object: Lua 5.1 with its base functions alone."""
    (config,) = documents("argocd-cm.yaml")
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    lua.execute("string, os, io, math, debug, require, package = nil")
    lua.globals()["obj"] = lua.table_from(obj, recursive=True)
    answer = lua.execute(config["data"][f"resource.customizations.health.{kind}"])
    return answer["status"], answer["message"]


def seen(*conditions: tuple[str, str], **annotations: str) -> Tree:
    """An object with conditions: type and status."""
    told = [{"type": t, "status": s, "reason": f"{t}Reason"} for t, s in conditions]
    about = {
        "name": "demo",
        "annotations": {f"orchestrate.dev/{k}": v for k, v in annotations.items()},
    }
    return {"metadata": about, "status": {"conditions": told}}


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_run_is_healthy_when_it_is_done_and_degraded_when_it_has_failed(kind: str) -> None:
    done, failed, suspended = CONDITIONS[kind]
    assert health(kind, seen((suspended, "False"), (done, "True"))) == ("Healthy", f"{done}Reason")
    assert health(kind, seen((done, "False"), (failed, "True")))[0] == "Degraded"


@pytest.mark.case("L39")
@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_suspended_run_is_progressing_and_a_cancelled_one_waits_for_a_person(kind: str) -> None:
    done, failed, suspended = CONDITIONS[kind]
    assert health(kind, seen((suspended, "True"))) == (
        "Progressing",
        f"suspended: {suspended}Reason",
    )
    assert health(kind, seen((suspended, "True"), cancelled="true"))[0] == "Suspended"
    for end, status in ((done, "Healthy"), (failed, "Degraded")):
        ended = seen((suspended, "True"), (end, "True"), cancelled="true")
        assert health(kind, ended)[0] == status


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_run_is_progressing_until_then(kind: str) -> None:
    for obj in (
        {"metadata": {"name": "demo"}},
        {"metadata": {"name": "demo"}, "status": {}},
        seen(),
        seen(("Running", "True"), ("Suspended", "False")),
        seen(("Restarting", "True"), ("Running", "False")),
    ):
        assert health(kind, obj)[0] == "Progressing", obj


def test_a_restart_of_a_pytorchjob_is_told() -> None:
    obj = seen(("Running", "False"), ("Restarting", "True"))
    assert health("kubeflow.org_PyTorchJob", obj)[1] == "between two attempts: RestartingReason"


@pytest.mark.parametrize("name", FILES)
def test_a_sample_is_yaml_in_which_nothing_is_said_twice(name: str) -> None:
    from orchestrator.source import parse_document

    for text in (SAMPLES / name).read_text("utf-8").split("\n---\n"):
        document = parse_document(text.encode(), name)
        assert not document.faults
        assert document.data


def application(name: str) -> Tree:
    (tree,) = documents(name)
    spec = tree["spec"]
    return dict(spec["template"]["spec"] if tree["kind"] == "ApplicationSet" else spec)


@pytest.mark.parametrize("name", ["argocd-application.yaml", "argocd-applicationset.yaml"])
def test_argo_cd_leaves_suspend_to_kueue_for_every_kind(name: str) -> None:
    spec = application(name)
    ignored = {f"{i['group']}_{i['kind']}": i["jsonPointers"] for i in spec["ignoreDifferences"]}
    policy = "/spec/runPolicy/suspend"
    assert ignored == {
        kind: [policy if "PyTorchJob" in kind else "/spec/suspend"] for kind in CONDITIONS
    }
    options = spec["syncPolicy"]["syncOptions"]
    assert {"RespectIgnoreDifferences=true", "ApplyOutOfSyncOnly=true"} <= set(options)
    assert spec["syncPolicy"]["automated"]["prune"] is False


def test_both_samples_of_argo_cd_agree() -> None:
    one, many = application("argocd-application.yaml"), application("argocd-applicationset.yaml")
    for key in ("ignoreDifferences", "syncPolicy"):
        assert one[key] == many[key]


JOB = """\
name: demo
resources: {time_limit: 2h}
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 5
"""
CLUSTERS = """\
clusters:
  east: &site
    target: jobset
    runs_root: /runs
    kubernetes: &facts
      namespace: team-a
      image: registry.example.org/training/trainer:1
      runs: {pvc: runs}
      labels: {team: a, cost-center: cc-1}
      kueue: {queue: research}
  west:
    target: job
    runs_root: /runs
    kubernetes: *facts
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The change to a repository of one run, as ci.yaml describes it, beside its branch main."""
    policy = tmp_path / "main" / "policy.yaml"
    policy.parent.mkdir()
    policy.write_bytes((SAMPLES / "policy.yaml").read_bytes())
    change = tmp_path / "change"
    run = change / "runs" / "demo"
    run.mkdir(parents=True)
    (run / "job.yaml").write_text(JOB)
    (run / "clusters.txt").write_text("east\nwest\n")
    (change / "clusters.yaml").write_text(CLUSTERS)
    (change / "policy.yaml").write_text("version: 1\n")  # as a job's author would like it
    monkeypatch.chdir(change)
    clusters = ["--clusters", "clusters.yaml", "--cluster", "east", "--cluster", "west"]
    with pytest.raises(SystemExit, match="0"):
        main(["render", "runs/demo/job.yaml", *clusters, "-o", "runs/demo"])
    return change


def ci(repository: Path) -> list[tuple[str, int, str]]:
    """Run the workflow's own steps where it runs them: name, exit code and output of each."""
    (workflow,) = documents("ci.yaml")
    assert workflow["defaults"]["run"]["working-directory"] == repository.name
    path = f"{Path(sys.executable).parent}:{program().parent}:{os.environ['PATH']}"
    environment = {**os.environ, **workflow["env"], "PATH": path}
    steps = [step for step in workflow["jobs"]["check"]["steps"] if "name" in step]
    done = []
    for step in steps:
        result = subprocess.run(
            ["bash", "-c", step["run"]],
            cwd=repository, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        done.append((step["name"], result.returncode, result.stdout + result.stderr))
    return done


def test_the_workflow_passes_what_was_rendered(repository: Path) -> None:
    for name, code, output in ci(repository):
        assert code == 0, (name, output)


def test_the_workflow_finds_what_was_not_rendered_and_what_goes_beyond(repository: Path) -> None:
    job = repository / "runs" / "demo" / "job.yaml"
    job.write_text(JOB.replace("2h", "9d"))
    _, valid, same, builds = ci(repository)
    assert valid[1] == 2
    assert "job.yaml:2:25" in valid[2]
    job.write_text(JOB.replace("steps: 5", "steps: 6"))
    _, valid, same, builds = ci(repository)
    assert (valid[1], same[1], builds[1]) == (0, 1, 0)
    assert '+  "steps": 6' in same[2]


def test_the_policy_is_that_of_the_branch_which_the_change_is_for() -> None:
    (workflow,) = documents("ci.yaml")
    steps = workflow["jobs"]["check"]["steps"]
    change, main = (step["with"] for step in steps if "checkout" in step.get("uses", ""))
    assert (change, main["ref"]) == ({"path": "change"}, "${{ github.base_ref }}")
    assert workflow["env"] == {"ORCHESTRATE_POLICY": f"../{main['path']}/policy.yaml"}


def failed(repository: Path) -> dict[str, str]:
    """Output of the workflow's steps that fail, by name."""
    return {name: output for name, code, output in ci(repository) if code}


HAND_MADE = "apiVersion: v1\nkind: Pod\nmetadata: {name: mine}\n"


@pytest.mark.parametrize("run", ["demo", "mine", ".mine"])
@pytest.mark.parametrize("beside", [(), ("job.yaml",), ("clusters.txt",)])
def test_an_overlay_made_by_hand_does_not_pass(
    repository: Path, run: str, beside: tuple[str, ...]
) -> None:
    overlay = repository / "runs" / run / "overlays" / "north"
    overlay.mkdir(parents=True)
    (overlay / "pod.yaml").write_text(HAND_MADE)
    (overlay / "kustomization.yaml").write_text("resources: [pod.yaml]\n")
    demo = repository / "runs" / "demo"
    for name in beside:
        (repository / "runs" / run / name).write_bytes((demo / name).read_bytes())
    found = failed(repository)
    if run == "demo":
        output = found["What is committed is what would be rendered"]
        assert "overlays/north/pod.yaml extra" in output
    else:
        output = found["Each folder of runs has a job file and clusters"]
        for name in {"job.yaml", "clusters.txt"} - set(beside):
            assert f"runs/{run}/{name}: missing or empty" in output


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_run_without_clusters_does_not_pass(repository: Path, text: str) -> None:
    (repository / "runs" / "demo" / "clusters.txt").write_text(text)
    assert "clusters.txt: missing or empty" in "".join(failed(repository).values())


def test_nothing_but_argo_cd_or_flux_starts_a_run() -> None:
    (workflow,) = documents("ci.yaml")
    scripts = [step.get("run", "") for step in workflow["jobs"]["check"]["steps"]]
    assert not any(word in script for script in scripts for word in ("submit", "apply", "create"))
    assert workflow["permissions"] == {"contents": "read"}


def test_the_pattern_of_the_applicationset_is_where_render_writes(repository: Path) -> None:
    (tree,) = documents("argocd-applicationset.yaml")
    (generator,) = tree["spec"]["generators"]
    (directory,) = generator["git"]["directories"]
    folders = {path.parent for path in repository.rglob("kustomization.yaml")}
    names = {path.relative_to(repository).as_posix() for path in folders}
    found = {name for name in names if fnmatchcase(name, directory["path"])}
    assert found == {"runs/demo/overlays/east", "runs/demo/overlays/west"}
