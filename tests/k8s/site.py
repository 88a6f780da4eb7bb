"""A job, a cluster profile for it, and a controller of the tests' own for its pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from k8s.apiserver import ApiServer
from orchestrator.backends.kubernetes_kinds import (
    INDEX_ANNOTATION,
    MANAGED_BY,
    MANAGER,
    REPLICA_INDEX_LABEL,
    REPLICA_TYPE_LABEL,
    RUN_LABEL,
    TARGETS,
    Target,
)
from orchestrator.cli.common import load_job
from orchestrator.render import Rendered, render

Cli = Callable[..., tuple[int, str, str]]
Json = dict[str, Any]

JOB = """\
name: {name}
train:
  model: {{preset: nano}}
  data: {{synthetic: {{samples: 64}}}}
  steps: 5
"""
CLUSTERS = """\
default: here
clusters:
  here:
    target: {target}
    runs_root: /runs
    kubernetes: {{namespace: default, runs: {{pvc: runs}}}}
"""
CONDITION = {"status": "True", "reason": "T", "message": "by the test"}


class Site:
    """One target on one API server.

    Args:
        server: with no controller: this one is called by the tests.
        folder: the working folder of the commands.
        target: name of the target.
    """

    def __init__(self, server: ApiServer, folder: Path, target: str, cli: Cli) -> None:
        self.server, self.folder, self._cli = server, folder, cli
        self.target: Target = TARGETS[target]
        (folder / "clusters.yaml").write_text(CLUSTERS.format(target=target))
        self.write_job("demo")

    def write_job(self, name: str, more: str = "") -> None:
        (self.folder / "job.yaml").write_text(JOB.format(name=name) + more)

    def rendered(self, sets: dict[str, str]) -> Rendered:
        """The job's files, with some keys set."""
        pairs = [f"{key}={value}" for key, value in sets.items()]
        clusters = str(self.folder / "clusters.yaml")
        return render(load_job(self.folder / "job.yaml", None, clusters, pairs).plan())

    def run(self, *argv: str) -> tuple[int, str]:
        """A command with the profile: exit code, and all that it printed."""
        code, out, err = self._cli(*argv, "--clusters", "clusters.yaml")
        return code, out + err

    def ok(self, *argv: str) -> str:
        """The same for a command that must not fail."""
        code, text = self.run(*argv)
        assert code == 0, text
        return text

    def main(self, name: str = "demo") -> Json:
        """The run's object."""
        return self.server.get(self.target.kind.plural, name)

    def end(self, condition: str, name: str = "demo") -> None:
        """Let the run's object say that it has ended."""
        status = {"conditions": [{**CONDITION, "type": condition}]}
        self.server.set(self.target.kind.plural, name, status=status)

    def pod(self, name: str = "demo", phase: str = "Running", grace_s: int = 1) -> str:
        """Make the pod of node 0; its name."""
        pod = f"{name}-node-0-x1"
        labels = {RUN_LABEL: name, MANAGED_BY: MANAGER, REPLICA_TYPE_LABEL: "master",
                  REPLICA_INDEX_LABEL: "0"}  # fmt: skip
        owner = {"apiVersion": self.target.kind.api_version, "kind": self.target.kind.name,
                 "name": name, "uid": self.main(name)["metadata"]["uid"]}  # fmt: skip
        about = {"name": pod, "labels": labels, "annotations": {INDEX_ANNOTATION: "0"},
                 "ownerReferences": [owner]}  # fmt: skip
        spec = {"containers": [{"name": self.target.container}],
                "terminationGracePeriodSeconds": grace_s}  # fmt: skip
        going: Json = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 1}}
        state = {"name": self.target.container, "ready": phase == "Running", "state": going}
        self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec,
                            "status": {"phase": phase, "containerStatuses": [state]}})  # fmt: skip
        return pod
