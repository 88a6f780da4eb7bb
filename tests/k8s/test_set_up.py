"""k8s/: what the image is made of is there, and the demo on kind sends the right commands to
stand-ins for docker, kind and kubectl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import orchestrator

Command = Callable[..., tuple[int, str, str]]
TOOLS = ("docker", "kind", "kubectl")
# Prints what a tool is asked, and its standard input, into one file.
STAND_IN = """#!/bin/sh
printf '%s %s\\n' "$(basename "$0")" "$*" >> "$CALLS"
case "$*" in
  "create cluster"*) cat > "$CALLS.cluster" ;;
  --version) echo "orchestrate, version 1.2.3" ;;
  "$BROKEN"*) exit 1 ;;
esac
"""


@pytest.fixture
def demo(root: Path, tmp_path: Path) -> Demo:
    return Demo(root, tmp_path)


class Demo:
    """demo.sh with stand-ins for the tools that it uses."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.script, self.folder, self.calls = root / "k8s/kind/demo.sh", folder, folder / "calls"
        for tool in (*TOOLS, "orchestrate"):
            (folder / tool).write_text(STAND_IN)
            (folder / tool).chmod(0o755)
        self.calls.touch()

    def run(self, *words: str, broken: str = "nothing at all") -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "CALLS": str(self.calls),
            "BROKEN": broken,
            "RUNS": str(self.folder / "my runs"),
            "ORCHESTRATE": str(self.folder / "orchestrate"),
        }
        return subprocess.run(
            [str(self.script), *words], env=env, capture_output=True, text=True, check=False
        )

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines()


def test_the_demo_makes_a_cluster_runs_the_job_and_removes_it(demo: Demo, root: Path) -> None:
    done = demo.run()
    assert done.returncode == 0, done.stderr
    image = "orchestrate-trainer:1.2.3"
    profiles = f"--clusters {root}/k8s/kind/clusters.yaml --cluster kind-job --watch"
    files = (root / "k8s/namespace.yaml", root / "k8s/kind/storage.yaml")
    both = " ".join(f"--filename {file}" for file in files)
    assert demo.asked() == [
        "docker info",
        "kind get clusters",
        "kind create cluster --name orchestrate --wait 180s --config -",
        "orchestrate --version",
        f"docker build --file {root}/k8s/image/Dockerfile --target cpu --tag {image} {root}",
        f"kind load docker-image {image} --name orchestrate",
        f"kubectl --context kind-orchestrate apply {both}",
        f"orchestrate submit {root}/examples/demo.yaml {profiles}",
        "kind delete cluster --name orchestrate",
    ]
    cluster = yaml.safe_load(Path(f"{demo.calls}.cluster").read_text())
    mounts = [node.get("extraMounts") for node in cluster["nodes"] if node["role"] == "worker"]
    shared = {"hostPath": str(demo.folder / "my runs"), "containerPath": "/runs"}
    assert mounts == [[shared], [shared]]
    assert (demo.folder / "my runs").stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize(
    ("target", "release", "deployment"),
    [
        ("pytorchjob", "v1.9.4", "training-operator"),
        ("jobset", "v0.12.0", "jobset-controller-manager"),
        ("trainjob", "v2.3.0", "kubeflow-trainer-controller-manager"),
    ],
)
def test_the_operator_of_a_target_is_installed_at_its_release_and_awaited(
    demo: Demo, target: str, release: str, deployment: str
) -> None:
    assert demo.run("--target", target).returncode == 0
    (install,) = [call for call in demo.asked() if "--server-side" in call]
    (wait,) = [call for call in demo.asked() if "rollout status" in call]
    assert release in install
    assert f"deployment/{deployment} --timeout 300s" in wait
    assert any(f"--cluster kind-{target} " in call for call in demo.asked())


def test_a_run_that_fails_leaves_its_cluster_for_a_look(demo: Demo) -> None:
    assert demo.run(broken="submit").returncode == 1
    assert not any("delete" in call for call in demo.asked())
    assert demo.run("--down").returncode == 0
    assert demo.asked()[-1] == "kind delete cluster --name orchestrate"


def test_all_missing_tools_are_named_at_once(demo: Demo) -> None:
    shutil.copy("/bin/bash", demo.folder)  # a PATH with nothing else
    for tool in TOOLS:
        (demo.folder / tool).unlink()
    done = demo.run()
    assert done.returncode == 2
    missing = [tool for tool in TOOLS if not shutil.which(tool, path="/usr/bin:/bin")]
    assert missing, "this machine has all three in /usr/bin"
    assert all(f"{tool} is missing: https://" in done.stderr for tool in missing)
    assert demo.asked() == []


def test_a_docker_that_does_not_answer_is_told(demo: Demo) -> None:
    done = demo.run(broken="info")
    assert (done.returncode, demo.asked()) == (2, ["docker info"])
    assert "docker does not answer" in done.stderr


@pytest.mark.parametrize("words", [["--target"], ["--target", "pod"], ["nonsense"]])
def test_wrong_arguments_are_refused_before_anything_is_done(demo: Demo, words: list[str]) -> None:
    assert demo.run(*words).returncode == 2
    assert demo.asked() == []


def test_the_image_is_made_of_files_that_are_there(root: Path) -> None:
    dockerfile = (root / "k8s/image/Dockerfile").read_text()
    copies = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    sources = {s for words in copies if not words[0].startswith("--from") for s in words}
    shown = (root / "k8s/image/Dockerfile.dockerignore").read_text().splitlines()
    assert sources == {line[1:] for line in shown if line.startswith("!")}
    assert all((root / source).exists() for source in sources)


def test_every_stage_of_the_image_exists_and_none_ends_in_a_shell(root: Path) -> None:
    lines = (root / "k8s/image/Dockerfile").read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    stages = [line[3] for line in words if line[0] == "FROM"]
    bases = {line[1] for line in words if line[0] == "FROM"} - {"${PYTHON_IMAGE}"}
    copied = {line[1].split("=")[1] for line in words if line[:1] == ["COPY"] and "=" in line[1]}
    assert bases | copied <= set(stages)
    assert {"cpu", "cuda"} <= set(stages)
    (entry,) = [line[1:] for line in words if line[0] == "ENTRYPOINT"]
    assert json.loads(" ".join(entry)) == ["orchestrate-node"]
    assert ["USER", "1000:1000"] in words


def test_the_manifests_name_the_image_by_this_release(cli: Command, root: Path) -> None:
    code, out, _ = cli("render", str(root / "examples/demo.yaml"), "--target", "job")
    assert code == 0
    assert f"orchestrate-trainer:{orchestrator.__version__}" in out


@pytest.mark.parametrize("target", ["job", "pytorchjob", "jobset", "trainjob"])
def test_the_demo_renders_with_the_profiles_for_kind(cli: Command, root: Path, target: str) -> None:
    files = ["--clusters", str(root / "k8s/kind/clusters.yaml"), "--cluster", f"kind-{target}"]
    code, out, _ = cli("render", str(root / "examples/demo.yaml"), *files)
    assert code == 0
    assert "imagePullPolicy: Never" in out.replace('"', "")
    assert "namespace: training" in out.replace('"', "")
