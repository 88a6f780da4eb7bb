"""Stopping and finding runs by an API server. The tests act as the controllers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from k8s.apiserver import ApiServer
from k8s.discovery import Resource
from k8s.site import Cli, Json, Site
from orchestrator.backends import kubernetes, kubernetes_apply, kubernetes_queues
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import CANCELLED_ANNOTATION, TARGETS
from orchestrator.backends.kubernetes_queues import QUEUE_LABEL
from orchestrator.errors import UserError
from running import wait_until


@pytest.fixture(params=sorted(TARGETS))
def each(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, request.param, cli)


@pytest.fixture
def site(server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, "pytorchjob", cli)


def obey(site: Site, pod: str) -> None:
    """Let the pod go as an operator does: after the run is suspended, when somebody watches."""

    def react(type_: str, thing: Json) -> None:
        is_main = thing["kind"] == site.target.kind.name
        if is_main and type_ == "MODIFIED" and site.target.is_suspended(thing):
            threading.Thread(target=go).start()

    def go() -> None:
        wait_until(lambda: any("watch=true" in one for one in site.server.requests), "a watch")
        site.server.delete("pods", pod)

    site.server.store.reactions.append(react)


def test_a_cancel_waits_for_the_pods(each: Site) -> None:
    each.ok("submit", "job.yaml")
    obey(each, each.pod())
    text = each.ok("cancel", "demo")
    assert "demo: CANCELLED" in text
    assert each.main()["metadata"]["annotations"][CANCELLED_ANNOTATION] == "true"
    assert each.server.list("pods") == []
    assert "CANCELLED" in each.ok("status", "demo")
    assert "demo does not run: CANCELLED" in each.ok("cancel", "demo")


def test_a_cancelled_run_goes_on_when_it_is_submitted_again(each: Site) -> None:
    each.ok("submit", "job.yaml")
    each.ok("cancel", "demo")
    old = each.main()["metadata"]["uid"]
    assert "demo continues" in each.ok("submit", "job.yaml")
    main = each.main()
    assert main["metadata"]["uid"] != old
    assert CANCELLED_ANNOTATION not in main["metadata"]["annotations"]
    assert not each.target.is_suspended(main)


def test_pods_that_stay_are_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_apply, "LEAVE_GRACE_S", 0.1)
    site.ok("submit", "job.yaml")
    pod = site.pod(grace_s=1)
    code, text = site.run("cancel", "demo")
    assert code == 1
    assert f"demo did not stop within 1.1 s: {pod} still run" in text
    assert site.target.is_suspended(site.main())  # what was asked for stays


def test_a_watch_that_is_too_old_is_begun_anew(site: Site) -> None:
    site.ok("submit", "job.yaml")
    pod = site.pod()
    obey(site, pod)
    site.server.fail("watch=true", status=410)
    assert "demo: CANCELLED" in site.ok("cancel", "demo")


def test_now_kills_the_pods(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.pod(grace_s=3600)
    site.server.store.graceful_pods = True
    assert "demo: CANCELLED" in site.ok("cancel", "demo", "--now")
    assert site.server.list("pods") == []


def test_a_finished_run_is_not_cancelled(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.end("Succeeded")
    assert "demo does not run: DONE" in site.ok("cancel", "demo")
    assert CANCELLED_ANNOTATION not in site.main()["metadata"]["annotations"]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_kueue_is_told_not_to_admit_it_again(site: Site, version: str) -> None:
    site.ok("submit", "job.yaml")
    others = [r for r in site.server.store.resources if r.plural != "workloads"]
    kueue = Resource("kueue.x-k8s.io", version, "workloads", "Workload")
    site.server.store.resources = (*others, kueue)
    queued(site, version)
    site.ok("cancel", "demo")
    assert site.server.get("workloads", "w")["spec"]["active"] is False


def test_a_run_that_kueue_has_not_seen_yet(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be admitted after its cancel."""
    site.ok("submit", "job.yaml")
    queued(site, "v1beta1")
    workload = site.server.get("workloads", "w")
    site.server.delete("workloads", "w")

    def react(type_: str, thing: Json) -> None:
        if thing["kind"] == "PyTorchJob" and type_ == "MODIFIED":
            site.server.create(workload)

    site.server.store.reactions.append(react)
    site.ok("cancel", "demo")
    assert site.server.get("workloads", "w")["spec"]["active"] is False
    site.server.delete("workloads", "w")
    monkeypatch.setattr(kubernetes_queues, "WORKLOAD_S", 0.0)
    kubernetes_queues.deactivate(Cluster(), site.main())  # nobody makes one: no error


def test_a_cancel_that_kueue_does_not_hear_of_is_an_error(site: Site) -> None:
    site.ok("submit", "job.yaml")
    queued(site, "v1beta1")
    site.server.forbidden.add(("patch", "workloads"))
    code, text = site.run("cancel", "demo")
    assert code == 1
    assert "may not patch workloads.kueue.x-k8s.io" in text
    assert "Kueue would start demo again" in text


def queued(site: Site, version: str) -> None:
    """What Kueue does to a run of its own: label and Workload."""
    about = site.main()["metadata"]
    site.server.set("pytorchjobs", "demo",
                    metadata={**about, "labels": {**about["labels"], QUEUE_LABEL: "q"}}
                    )  # fmt: skip
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "demo",
             "uid": about["uid"]}  # fmt: skip
    site.server.create({"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "Workload",
                               "metadata": {"name": "w", "ownerReferences": [owner]},
                               "spec": {"active": True}})  # fmt: skip


def test_list_shows_the_runs_of_this_tool(each: Site) -> None:
    for name in ("b", "a"):
        each.write_job(name)
        each.ok("submit", "job.yaml")
    kind = each.target.kind
    each.server.create({"apiVersion": kind.api_version, "kind": kind.name,
                        "metadata": {"name": "not-ours"}, "spec": {}})  # fmt: skip
    rows = json.loads(each.ok("list", "--json"))
    assert [(row["run"], row["run_dir"]) for row in rows] == [("a", "/runs/a"), ("b", "/runs/b")]


def test_many_runs_are_asked_for_together(site: Site) -> None:
    names = [f"r-{number}" for number in range(6)]
    for name in names:
        site.write_job(name)
        site.ok("submit", "job.yaml")
        site.pod(name)
    site.server.requests.clear()
    rows = json.loads(site.ok("list", "--json"))
    assert {row["state"] for row in rows} == {"RUNNING"}
    lists = [request for request in site.server.requests if "/log" not in request]
    assert len(lists) == 4, lists  # the objects twice, pods, events


@pytest.mark.parametrize("command", ["status", "watch", "logs", "cancel", "wait", "checkpoints"])
def test_a_run_that_is_not_there(site: Site, command: str) -> None:
    code, text = site.run(command, "nothing")
    assert code == 2
    assert f"no run 'nothing': there is no {site.target.kind.name} nothing in" in text
    assert "context test" in text


@pytest.mark.parametrize("command", ["status", "watch", "cancel", "wait"])
def test_an_object_of_others_is_no_run(site: Site, command: str) -> None:
    site.server.create({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
                        "metadata": {"name": "theirs"}, "spec": {}})  # fmt: skip
    code, text = site.run(command, "theirs")
    assert code == 1
    assert "that orchestrate has not made" in text


def test_wait_ends_with_the_run(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.end("Succeeded")
    assert "demo: DONE" in site.ok("wait", "demo")


def test_a_server_that_is_away_leaves_the_state_unknown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ok("submit", "job.yaml")
    handle = kubernetes.PYTORCHJOB._handle("demo", Path("/runs/demo"))
    backend = kubernetes.KubernetesBackend(site.target, Cluster(pauses_s=()))
    site.server.fail("GET", drop=True)
    (status,) = backend.status([handle])
    assert status.state.name == "UNKNOWN"
    assert "no answer from" in status.reason
    (status,) = backend.status([handle])
    assert status.state.name == "PENDING"


@pytest.mark.parametrize("fault", [{"status": 500}, {"drop": True}])
def test_the_state_is_told_without_the_log_of_a_node_that_is_away(
    site: Site, fault: dict[str, Any]
) -> None:
    site.ok("submit", "job.yaml")
    backend = kubernetes.KubernetesBackend(site.target, Cluster())
    handle = backend.handle(Path("/runs/demo"))
    site.pod()
    site.server.fail("/log", times=9, **fault)
    (status,) = backend.status([handle])
    assert (status.state.name, status.step) == ("RUNNING", None)
    assert len([request for request in site.server.requests if "/log" in request]) == 1


def test_the_state_is_told_without_a_permission_for_events(site: Site) -> None:
    site.ok("submit", "job.yaml")
    site.pod()
    site.server.forbidden.add(("list", "events"))
    assert "RUNNING" in site.ok("status", "demo")


def test_ssh_is_refused() -> None:
    with pytest.raises(UserError, match="Leave ssh out"):
        kubernetes.PYTORCHJOB.at("login")
