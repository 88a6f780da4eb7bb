"""Submitting to an API server: once, whoever else does so, and again where that makes sense."""

from __future__ import annotations

import json
import shlex
import threading
from pathlib import Path

import pytest

from k8s.apiserver import ApiServer
from k8s.objects import pod_templates
from k8s.site import Cli, Json, Site
from orchestrator.backends import kubernetes_apply
from orchestrator.backends.base import After
from orchestrator.backends.kubernetes import KubernetesBackend
from orchestrator.backends.kubernetes_apply import Order
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import TARGETS
from orchestrator.backends.kubernetes_nodes import least_nodes, num_nodes
from orchestrator.errors import UserError
from running import wait_until

OTHERS = {
    "pytorchjob": ["configmaps"],
    "trainjob": ["configmaps", "trainingruntimes"],
    "jobset": ["configmaps"],
    "job": ["configmaps", "services"],
}


@pytest.fixture(params=sorted(TARGETS))
def each(request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, request.param, cli)


@pytest.fixture
def site(server: ApiServer, tmp_path: Path, cli: Cli) -> Site:
    return Site(server, tmp_path, "pytorchjob", cli)


def test_a_submit_makes_all_objects_and_one_owns_the_others(each: Site) -> None:
    text = each.ok("submit", "job.yaml")
    assert f"demo is submitted as {each.target.kind.name} in context test" in text
    uid = each.main()["metadata"]["uid"]
    for plural in OTHERS[each.target.name]:
        owners = each.server.get(plural, "demo")["metadata"]["ownerReferences"]
        assert [owner["uid"] for owner in owners] == [uid]
    each.server.delete(each.target.kind.plural, "demo")
    assert [each.server.list(plural) for plural in OTHERS[each.target.name]] == [
        [] for _ in OTHERS[each.target.name]
    ]


def test_the_pods_tell_how_many_nodes_are_enough(each: Site) -> None:
    """By which an elastic run is RUNNING; see test_kubernetes_status.py."""
    sets = {"resources.nodes.min": "1", "resources.nodes.max": "3"}
    objects = Order(Cluster(), each.target, each.rendered(sets)).objects
    pods = [template._asdict() for one in objects for template in pod_templates(one)]
    assert least_nodes(each.target, pods) == 1
    assert num_nodes(each.target, objects[-1], pods) == 3
    (*_, fixed) = Order(Cluster(), each.target, each.rendered({})).objects
    assert least_nodes(each.target, [t._asdict() for t in pod_templates(fixed)]) is None


def test_fields_are_applied_by_a_manager_of_their_own(each: Site) -> None:
    each.ok("submit", "job.yaml")
    managers = {(m["manager"], m["operation"]) for m in each.main()["metadata"]["managedFields"]}
    assert managers == {("orchestrate", "Apply")}


def test_a_run_that_starts_suspended_says_how_it_goes_on(each: Site) -> None:
    text = each.ok("submit", "job.yaml", "--set", "kubernetes.suspend=true")
    assert each.target.is_suspended(each.main())
    words = shlex.split(text[text.index("kubectl patch") :].splitlines()[0])
    kind, name, part = words[2], words[3], words[-1]
    Cluster().patch(each.target.kind, name, json.loads(part))
    assert (kind, name) == (each.target.kind.resource, "demo")
    assert not each.target.is_suspended(each.main())


def test_what_a_person_has_suspended_goes_on_as_status_and_submit_say(each: Site) -> None:
    each.ok("submit", "job.yaml")
    Cluster().patch(each.target.kind, "demo", each.target.suspension(True))
    again = each.ok("submit", "job.yaml")
    assert "(SUSPENDED) already: nothing started: somebody has suspended it" in again
    words = each.target.resume_words("demo", "default")
    assert words in again
    assert words in each.ok("status", "demo", "--json").replace('\\"', '"')
    Cluster().patch(each.target.kind, "demo", json.loads(shlex.split(words)[-1]))
    assert "SUSPENDED" not in each.ok("status", "demo")


def test_submitting_again_starts_nothing(each: Site) -> None:
    each.ok("submit", "job.yaml")
    before = each.main()
    assert "already: nothing started" in each.ok("submit", "job.yaml")
    assert each.main() == before


def test_a_submit_that_was_cut_off_is_finished_by_the_next(each: Site) -> None:
    each.server.fail(f"PATCH .*/{each.target.kind.plural}/", status=403, message="not now")
    assert each.run("submit", "job.yaml")[0] == 1
    assert each.server.list(each.target.kind.plural) == []
    each.ok("submit", "job.yaml")
    assert each.server.get("configmaps", "demo")["data"]["trainer.json"]
    assert each.server.get("configmaps", "demo")["metadata"]["ownerReferences"]


def test_objects_without_an_owner_are_given_one(site: Site) -> None:
    site.ok("submit", "job.yaml")
    about = site.server.get("configmaps", "demo")["metadata"]
    site.server.set("configmaps", "demo", metadata={**about, "ownerReferences": []})
    site.ok("submit", "job.yaml")
    assert site.server.get("configmaps", "demo")["metadata"]["ownerReferences"]


def test_a_run_that_is_done_is_not_run_again(each: Site) -> None:
    each.ok("submit", "job.yaml")
    each.end(each.target.done)
    before = each.main()
    assert "demo is done: nothing to start" in each.ok("submit", "job.yaml")
    assert each.main() == before


def test_a_run_that_is_done_is_not_run_again_with_other_contents(each: Site) -> None:
    """Its folder says that it is done: a new object would delete the old logs and train nothing."""
    each.ok("submit", "job.yaml")
    each.end(each.target.done)
    before = each.main()
    text = each.ok("submit", "job.yaml", "--set", "train.steps=6")
    assert "demo is done (with other contents than those of now): nothing to start" in text
    assert each.main() == before
    assert '"steps": 5' in each.server.get("configmaps", "demo")["data"]["trainer.json"]


@pytest.mark.parametrize("contents", ["the same", "other"])
def test_what_has_failed_makes_room(each: Site, contents: str) -> None:
    each.ok("submit", "job.yaml")
    old = each.main()["metadata"]["uid"]
    each.end(each.target.failed)
    each.pod(phase="Failed")
    sets = () if contents == "the same" else ("--set", "train.steps=6")
    assert "demo continues as" in each.ok("submit", "job.yaml", *sets)
    assert each.main()["metadata"]["uid"] != old
    assert each.server.list("pods") == []
    assert each.server.get("configmaps", "demo")["data"]


def test_other_contents_are_refused_while_it_runs(each: Site) -> None:
    each.ok("submit", "job.yaml")
    before = each.main()
    code, text = each.run("submit", "job.yaml", "--set", "train.steps=6")
    assert code == 1
    assert "with other contents than those of now" in text
    assert "orchestrate cancel demo" in text
    assert each.main() == before
    assert '"steps": 5' in each.server.get("configmaps", "demo")["data"]["trainer.json"]


@pytest.mark.parametrize("plural", ["pytorchjobs", "configmaps"])
def test_what_others_have_made_is_left_alone(site: Site, plural: str) -> None:
    kinds = {"pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"), "configmaps": ("v1", "ConfigMap")}
    version, kind = kinds[plural]
    before = site.server.create(
        {"apiVersion": version, "kind": kind, "metadata": {"name": "demo"}, "spec": {}}
    )
    code, text = site.run("submit", "job.yaml")
    assert code == 1
    assert "that orchestrate has not made" in text
    assert site.server.get(plural, "demo") == before


def test_an_object_that_is_being_deleted_is_waited_for(site: Site) -> None:
    site.ok("submit", "job.yaml")
    about = site.main()["metadata"]
    site.server.set("pytorchjobs", "demo", metadata={**about, "finalizers": ["x/y"]})
    site.server.delete("pytorchjobs", "demo")
    assert site.main()["metadata"]["deletionTimestamp"]

    def release() -> None:
        wait_until(lambda: any(r.startswith("DELETE") for r in site.server.requests), "a DELETE")
        about = site.main()["metadata"]
        site.server.set("pytorchjobs", "demo", metadata={**about, "finalizers": []})

    operator = threading.Thread(target=release)
    operator.start()
    site.ok("submit", "job.yaml")
    operator.join()
    assert site.main()["metadata"]["uid"] != about["uid"]


def test_submit_with_watch_follows_to_the_end(each: Site) -> None:
    """What ends it is there before the first question."""

    def react(type_: str, thing: Json) -> None:
        if thing["kind"] == each.target.kind.name and type_ == "ADDED":
            threading.Thread(target=each.end, args=(each.target.done,)).start()

    each.server.store.reactions.append(react)
    assert "demo: DONE" in each.ok("submit", "job.yaml", "--watch")
    assert "DONE" in each.ok("status", "/runs/demo")  # the folder names the run, too


def test_an_object_that_does_not_go_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_apply, "LEAVE_GRACE_S", 0.3)
    site.ok("submit", "job.yaml")
    site.end("Failed")
    about = site.main()["metadata"]
    site.server.set("pytorchjobs", "demo", metadata={**about, "finalizers": ["x/y"]})
    code, text = site.run("submit", "job.yaml")
    assert code == 1
    assert "still there: pytorchjobs.kubeflow.org demo" in text


def test_fresh_and_after_are_refused_with_what_to_do(site: Site) -> None:
    code, text = site.run("submit", "job.yaml", "--fresh")
    assert (code, "Give the run another name" in text) == (2, True)
    backend, after = KubernetesBackend(site.target, Cluster()), [After("afterok", "other")]
    with pytest.raises(UserError, match="orchestrate wait other"):
        backend.submit(site.rendered({}), runs_root=Path("/runs"), workdir=Path("/w"),
                       job_text="", after=after)  # fmt: skip
    assert site.server.list("pytorchjobs") == []


@pytest.mark.parametrize("key", ["namespace", "context"])
def test_a_place_that_only_the_job_names_is_refused(site: Site, key: str) -> None:
    code, text = site.run("submit", "job.yaml", "--set", f"kubernetes.{key}=elsewhere")
    assert code == 2
    assert f"kubernetes.{key}: the job wants elsewhere" in text
    assert not any("elsewhere" in request for request in site.server.requests)


def test_a_cluster_without_the_operator(tmp_path: Path, cli: Cli,
                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with ApiServer(tmp_path, without=("kubeflow.org",)) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        site = Site(server, tmp_path, "pytorchjob", cli)
        code, text = site.run("submit", "job.yaml")
        assert code == 1
        assert "install the Kubeflow training operator" in text
        assert "--target job needs no operator" in text
        code, text = site.run("status", "demo")
    assert (code, "install the Kubeflow training operator" in text) == (1, True)
