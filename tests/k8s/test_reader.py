"""The pod for looking into the run folder when no pod of the run is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k8s.apiserver import ApiServer
from k8s.shapes import RUNNING, waiting
from k8s.site import Cli, Site
from orchestrator.backends import kubernetes_reader
from orchestrator.backends.kubernetes_kinds import TARGETS

Json = dict[str, Any]


class Kubelet:
    """Starts each reader pod that is made; `state` is what becomes of its container."""

    def __init__(self, server: ApiServer, state: Json) -> None:
        self.server, self.state = server, state
        self.pods: list[Json] = []
        server.store.reactions.append(self.react)

    def react(self, type_: str, obj: Json) -> None:
        if type_ == "ADDED" and obj["kind"] == "Pod":
            self.pods.append(obj)
            (container,) = obj["spec"]["containers"]
            told = {"name": container["name"], "state": self.state}
            phase = "Running" if "running" in self.state else "Pending"
            obj["spec"]["nodeName"] = "n"
            self.server.set("pods", obj["metadata"]["name"], spec=obj["spec"],
                            status={"phase": phase, "containerStatuses": [told]})  # fmt: skip


def placed(server: ApiServer, tmp_path: Path, target: str, cli: Cli) -> Site:
    """A site whose run folder is on this machine, and a run on it that is done."""
    site = Site(server, tmp_path, target, cli)
    clusters = tmp_path / "clusters.yaml"
    clusters.write_text(clusters.read_text().replace("/runs\n", f"{tmp_path}/volume\n"))
    site.ok("submit", "job.yaml")
    site.end(site.target.done)
    (tmp_path / "volume" / "demo").mkdir(parents=True)
    return site


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_it_is_made_for_the_command_alone(
    server: ApiServer, tmp_path: Path, cli: Cli, target: str
) -> None:
    site = placed(server, tmp_path, target, cli)
    kubelet = Kubelet(server, RUNNING)
    folder = tmp_path / "volume/demo/checkpoints/step-000000005-attempt-00001"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    shown = site.ok("checkpoints", "demo", "--reader-pod")
    assert "broken" in shown
    assert server.list("pods") == []
    (pod,) = kubelet.pods
    (container,) = pod["spec"]["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"{tmp_path}/volume" in mounted
    names = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= names
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["activeDeadlineSeconds"] == kubernetes_reader.LIFE_S
    assert "orchestrate.dev/run" not in pod["metadata"]["labels"]
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["uid"] == site.main()["metadata"]["uid"]


def test_a_report_is_made_through_it(server: ApiServer, tmp_path: Path, cli: Cli) -> None:
    site = placed(server, tmp_path, "job", cli)
    Kubelet(server, RUNNING)
    (tmp_path / "volume/demo/metrics.jsonl").write_text('{"step": 7, "attempt": 1, "loss": 2.5}\n')
    page = site.ok("report", "demo", "--out", "-", "--reader-pod")
    assert "training from 2.500 at 7" in page
    assert server.list("pods") == []


def test_one_that_does_not_start_says_why_and_goes(
    server: ApiServer, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = placed(server, tmp_path, "job", cli)
    Kubelet(server, waiting("ImagePullBackOff", "no such image"))
    monkeypatch.setattr(kubernetes_reader, "START_TIMEOUT_S", 0.0)
    code, text = site.run("checkpoints", "demo", "--reader-pod")
    assert code != 0
    assert "does not start: ImagePullBackOff: the node cannot pull the image" in text
    assert server.list("pods") == []


def test_a_running_pod_of_the_run_is_enough(server: ApiServer, tmp_path: Path, cli: Cli) -> None:
    site = placed(server, tmp_path, "jobset", cli)
    site.pod()
    assert "no checkpoint yet" in site.ok("checkpoints", "demo", "--reader-pod")
    assert len(server.list("pods")) == 1


def test_other_backends_need_none(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/receipt.json").write_text('{"backend": "local"}')
    code, _, err = cli("checkpoints", "demo", "--reader-pod")
    assert code != 0
    assert "local reads the run folder without a pod" in err
