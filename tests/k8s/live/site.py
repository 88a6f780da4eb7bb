"""A cluster that the suite asks its questions: a real one, or the one of tests/k8s/lab.py.

A real one is named by the environment (k8s/README.md, "The suite on a real cluster").
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

import running
from running import PROGRAMS, losses, state_sha256
from slurm.training import Act, Outcome

ORCHESTRATE = Path(sys.executable).parent / "orchestrate"
GROUPS = {"pytorchjob": "kubeflow.org", "trainjob": "trainer.kubeflow.org",
          "jobset": "jobset.x-k8s.io", "job": "batch"}  # fmt: skip
COMMAND_S, START_S, END_S, GONE_S = 240.0, 300.0, 420.0, 120.0
POLL_S = 1.0


def inspector() -> str:
    """A program that prints a run's losses and the SHA-256 of its tensors, in a pod."""
    functions = (losses, state_sha256, running._hash)
    body = "\n".join(inspect.getsource(function) for function in functions)
    imports = "import hashlib, json, sys\nfrom pathlib import Path\nfrom typing import Any\n"
    show = "run = Path(sys.argv[1])\nprint(json.dumps([losses(run), state_sha256(run)]))\n"
    return f"from __future__ import annotations\n{imports}{body}\n{show}"


def told_outcome(printed: str) -> Outcome:
    """What the inspector has printed."""
    steps, tensors = json.loads(printed.splitlines()[-1])
    return {int(step): loss for step, loss in steps.items()}, tensors


@dataclass
class Site:
    """A namespace of a cluster, and the command line's way to it.

    Args:
        facts: the profile's `kubernetes`, but for the namespace and the job's own model.
        folder: for the files of the tests.
        runs: the folder here in which the run folders are; None where they are out of reach.
    """

    kubeconfig: str
    namespace: str
    facts: Mapping[str, Any]
    folder: Path
    runs: Path | None = None
    targets: tuple[str, ...] = tuple(GROUPS)
    api: client.ApiClient = field(init=False)

    def __post_init__(self) -> None:
        self.api = config.new_client_from_config(self.kubeconfig)
        self.core = client.CoreV1Api(self.api)

    def lacks(self, target: str) -> str:
        """Why this kind cannot be asked about, or ""."""
        if target not in self.targets:
            return f"{target} is not in ORCHESTRATE_TEST_TARGETS"
        groups = {group.name for group in client.ApisApi(self.api).get_api_versions().groups}
        group = GROUPS[target]
        return "" if group in groups else f"the cluster has no {target} (API group {group})"

    def begin(self, target: str, text: str, acts: list[Act]) -> Run:
        """A run that is not submitted yet: its name is new, and its model acts as told."""
        name = f"{target}-{uuid.uuid4().hex[:8]}"
        data = {"acting.py": (PROGRAMS / "acting.py").read_text(), "act.json": json.dumps(acts)}
        code = {"metadata": {"name": f"code-{name}"}, "data": data}
        self.core.create_namespaced_config_map(self.namespace, code)
        volumes = {"code": {"config_map": f"code-{name}", "mount": "/workspace"}}
        facts = {**self.facts, "namespace": self.namespace, "volumes": volumes}
        profile = {"target": target, "runs_root": "/runs", "kubernetes": facts}
        folder = self.folder / name
        folder.mkdir()
        (folder / "clusters.yaml").write_text(yaml.safe_dump({"clusters": {"site": profile}}))
        (folder / "job.yaml").write_text(f"name: {name}\n{text}")
        return Run(self, name, folder)

    def pods(self, name: str) -> list[dict[str, Any]]:
        """The pods of a run as the server has them, the newest last."""
        answer = self.core.list_namespaced_pod(
            self.namespace,
            label_selector=f"orchestrate.dev/run={name}",
            _preload_content=False,  # the client's own models refuse what they do not know
        )
        pods: list[dict[str, Any]] = json.loads(answer.data)["items"]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def outcome(self, name: str) -> Outcome:
        """The losses of a run and the SHA-256 of its tensors at the end."""
        if self.runs is not None:
            return losses(self.runs / name), state_sha256(self.runs / name)
        return told_outcome(self._ask_a_pod(name))

    def _ask_a_pod(self, name: str) -> str:
        """What the inspector prints in a pod with the run's image and volume."""
        spec = self.pods(name)[-1]["spec"]
        for key in ("initContainers", "hostname", "subdomain", "schedulingGates"):
            spec.pop(key, None)
        container = spec["containers"][0]
        container["command"] = [self.facts.get("python", "python3"), "-c", inspector()]
        container["args"] = [f"/runs/{name}"]
        spec |= {"containers": [container], "restartPolicy": "Never"}
        pod = {"metadata": {"name": f"inspect-{name}"}, "spec": spec}
        self.core.create_namespaced_pod(self.namespace, pod)
        eventually(lambda: self._phase(f"inspect-{name}") in ("Succeeded", "Failed"), START_S)
        return str(self.core.read_namespaced_pod_log(f"inspect-{name}", self.namespace))

    def _phase(self, pod: str) -> str:
        answer = self.core.read_namespaced_pod(pod, self.namespace, _preload_content=False)
        return str(json.loads(answer.data).get("status", {}).get("phase"))


@dataclass
class Run:
    """A run on the site; everything goes by the command line."""

    site: Site
    name: str
    folder: Path

    def orchestrate(self, *words: str, code: int | None = 0) -> str:
        """What a command prints on standard output; fails if it leaves with another code."""
        done = subprocess.run(
            [str(ORCHESTRATE), *words, *self._cluster],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=COMMAND_S,
            env=self._environ,
        )  # fmt: skip
        said = f"{' '.join(words)} left with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code in (None, done.returncode), said
        return done.stdout

    @contextmanager
    def followed(self) -> Iterator[list[str]]:
        """What `logs -f` prints until the run's end, line by line: there after the block."""
        argv = [str(ORCHESTRATE), "logs", self.name, "-f", *self._cluster]
        lines: list[str] = []
        with subprocess.Popen(
            argv, cwd=self.folder, stdout=subprocess.PIPE, text=True, env=self._environ
        ) as process:
            try:
                yield lines
                lines += process.communicate(timeout=COMMAND_S)[0].splitlines()
            finally:
                process.kill()
        assert process.returncode == 0, lines

    def submit(self) -> str:
        return self.orchestrate("submit", "job.yaml")

    @property
    def _cluster(self) -> list[str]:
        return ["--cluster", "site", "--clusters", str(self.folder / "clusters.yaml")]

    @property
    def _environ(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": self.site.kubeconfig}

    def status(self) -> dict[str, Any]:
        (status,) = json.loads(self.orchestrate("status", self.name, "--json"))
        assert isinstance(status, dict)
        return status

    def wait_for(self, is_so: Callable[[dict[str, Any]], object], timeout_s: float) -> None:
        """Return when the status is as wanted; fail with all that is known if it never is."""
        seen: list[dict[str, Any]] = []

        def look() -> bool:
            seen.append(self.status())
            return bool(is_so(seen[-1]))

        eventually(look, timeout_s, lambda: f"{seen[-1]}\n{self.logs()}")

    def ends(self, state: str) -> dict[str, Any]:
        """The status at the end, which has this state."""
        final = ("DONE", "FAILED", "CANCELLED", "LOST")
        self.wait_for(lambda status: status["state"] in final, END_S)
        status = self.status()
        assert status["state"] == state, f"{status}\n{self.logs()}"
        return status

    def logs(self) -> str:
        """The ends of the logs of all pods that are there."""
        return "\n".join(self._log(pod["metadata"]["name"]) for pod in self.site.pods(self.name))

    def _log(self, pod: str) -> str:
        try:
            text = self.site.core.read_namespaced_pod_log(pod, self.site.namespace, tail_lines=40)
        except client.ApiException as error:  # it has not started yet
            text = error.reason
        return f"--- {pod}\n{text}"


def eventually(
    is_so: Callable[[], bool], timeout_s: float, say: Callable[[], str] = lambda: ""
) -> None:
    """Ask until it is so; fail with what `say` returns if it never is."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s\n{say()}"
        time.sleep(POLL_S)
