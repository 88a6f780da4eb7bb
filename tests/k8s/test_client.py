"""The backend's requests against an API server: repeated where that helps, refused in words."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from k8s.answers import ApiError
from k8s.apiserver import ApiServer
from orchestrator.backends import kubernetes_client, kubernetes_kinds, kubernetes_transport
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_errors import (
    AlreadyThere,
    Conflict,
    Gone,
    MissingKind,
    NotThere,
)
from orchestrator.backends.kubernetes_kinds import CONFIG_MAP, JOB, PYTORCHJOB
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError

CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "labels": {"run": "a"}},
    "data": {"x": "1"},
}


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return Cluster(pauses_s=(0.01, 0.01))


def test_an_object_is_applied_read_listed_and_deleted(cluster: Cluster) -> None:
    cluster.apply(CONFIG)
    assert cluster.get(CONFIG_MAP, "a")["data"] == {"x": "1"}
    assert [one["metadata"]["name"] for one in cluster.objects(CONFIG_MAP, "run=a")] == ["a"]
    assert cluster.objects(CONFIG_MAP, "run=b") == []
    cluster.delete(CONFIG_MAP, "a")
    assert cluster.find(CONFIG_MAP, "a") is None
    cluster.delete(CONFIG_MAP, "a")  # none is no error


def test_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    assert cluster.apply(CONFIG, dry_run=True)["data"] == {"x": "1"}
    assert cluster.find(CONFIG_MAP, "a") is None


@pytest.mark.parametrize("status", kubernetes_transport.REPEATED)
def test_what_may_pass_is_asked_again(cluster: Cluster, server: ApiServer, status: int) -> None:
    server.fail("PATCH", status=status, times=2)
    cluster.apply(CONFIG)
    assert sum(request.startswith("PATCH") for request in server.requests) == 3


def test_a_dropped_connection_is_asked_again(cluster: Cluster, server: ApiServer) -> None:
    server.fail("PATCH", drop=True, times=2)
    cluster.apply(CONFIG)
    assert cluster.get(CONFIG_MAP, "a")["data"] == {"x": "1"}


@pytest.mark.parametrize("fault", [{"status": 503}, {"drop": True}])
def test_the_repetitions_have_an_end(
    cluster: Cluster, server: ApiServer, fault: dict[str, Any]
) -> None:
    server.fail("GET", times=9, **fault)
    with pytest.raises(NoAnswer, match="get configmaps a in default"):
        cluster.get(CONFIG_MAP, "a")
    assert len(server.requests) == 3


def test_an_operator_that_does_not_answer(cluster: Cluster, server: ApiServer) -> None:
    text = 'Internal error occurred: failed calling webhook "v.kubeflow.org": no endpoints'
    server.fail("PATCH", times=9, status=500, message=text)
    with pytest.raises(NoAnswer, match=r"no endpoints. The operator that checks it does not"):
        cluster.apply(CONFIG)


def test_a_server_that_wants_a_long_pause_is_not_waited_for(
    cluster: Cluster, server: ApiServer
) -> None:
    server.fail("GET", status=429, retry_after_s=3600)
    with pytest.raises(NoAnswer, match="busy"):
        cluster.get(CONFIG_MAP, "a")
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"\xff\xfe", b"hello", b"[]"])
def test_an_answer_that_is_no_object(server: ApiServer, body: bytes) -> None:
    """As of a server that is none of Kubernetes."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        config = server.kubeconfig.read_text()
        port = other.server_address[1]
        server.kubeconfig.write_text(config.replace(server.url, f"http://127.0.0.1:{port}"))
        with pytest.raises(BackendError, match="is no Kubernetes object"):
            Cluster(pauses_s=()).get(CONFIG_MAP, "a")
        thread.join()


def test_a_short_retry_after_is_obeyed(cluster: Cluster, server: ApiServer) -> None:
    server.fail("GET", status=429, retry_after_s=1)
    with pytest.raises(NotThere):
        cluster.get(CONFIG_MAP, "a")
    assert len(server.requests) == 2


def test_a_slow_server_is_given_up(server: ApiServer) -> None:
    server.fail("GET", slow_s=30, times=2)
    server.fail("PATCH", slow_s=30, times=2)
    cluster = Cluster(pauses_s=(0.01,), read_timeout_s=0.2)
    with pytest.raises(NoAnswer, match=r"network \(VPN\)\?$"):  # a question changes nothing
        cluster.get(CONFIG_MAP, "a")
    with pytest.raises(NoAnswer, match="may have been carried out"):
        cluster.apply(CONFIG)


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    with pytest.raises(NoAnswer, match="no answer from http://127"):
        Cluster(pauses_s=()).get(CONFIG_MAP, "a")


def test_new_credentials_are_read_once(cluster: Cluster, server: ApiServer) -> None:
    cluster.apply(CONFIG)
    server.token = "renewed"
    config = server.kubeconfig.read_text()
    server.kubeconfig.write_text(config.replace("token-of-the-tests", "renewed"))
    assert cluster.get(CONFIG_MAP, "a")["data"] == {"x": "1"}


def test_expired_credentials(cluster: Cluster, server: ApiServer) -> None:
    server.token = "another"
    with pytest.raises(BackendError, match=r"context test: get .* expired.*Log in"):
        cluster.get(CONFIG_MAP, "a")
    assert len(server.requests) == 2


def test_no_permission(cluster: Cluster, server: ApiServer) -> None:
    server.forbidden.add(("get", "pytorchjobs"))
    with pytest.raises(BackendError) as refused:
        cluster.get(PYTORCHJOB, "a")
    text = str(refused.value)
    assert "User tester may not get pytorchjobs.kubeflow.org in namespace default" in text


def test_a_user_without_credentials_is_told_to_log_in(cluster: Cluster, server: ApiServer) -> None:
    text = 'pods is forbidden: User "system:anonymous" cannot list resource "pods"'
    server.fail("GET", status=403, message=text)
    with pytest.raises(BackendError, match="Log in again"):
        cluster.get(CONFIG_MAP, "a")


def test_a_watch_that_is_cut_off_within_a_line(cluster: Cluster) -> None:
    for line in (b'{"type": "ADD', b"null", b'{"type": "ADDED"}'):
        with pytest.raises(NoAnswer, match="cut off"):
            kubernetes_client._event(cluster.asked("watch", CONFIG_MAP), line)


def test_a_kind_that_the_cluster_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer(tmp_path, without=("kubeflow.org",)) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
        with pytest.raises(MissingKind) as refused:
            Cluster().get(PYTORCHJOB, "a")
    text = str(refused.value)
    assert "Kubeflow training operator" in text
    assert "--target job" in text
    assert "kubectl get crd pytorchjobs.kubeflow.org" in text


def test_an_object_that_is_not_there_is_no_missing_kind(cluster: Cluster) -> None:
    with pytest.raises(NotThere) as missing:
        cluster.get(PYTORCHJOB, "a")
    assert not isinstance(missing.value, MissingKind)


def test_a_conflict_names_fields_and_managers(cluster: Cluster, server: ApiServer) -> None:
    cluster.apply(CONFIG)
    other = Cluster()
    other.create({**CONFIG, "metadata": {"name": "b"}})  # by an update, which is another manager
    with pytest.raises(AlreadyThere):
        other.create({**CONFIG, "metadata": {"name": "b"}})
    server.fail("PATCH", status=0)
    held = {"manager": "kubectl-edit", "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:x": {}}}}  # fmt: skip
    server.set("configmaps", "a", metadata={**server.get("configmaps", "a")["metadata"],
                                            "managedFields": [held]})  # fmt: skip
    with pytest.raises(Conflict, match=r"\.data\.x to kubectl-edit"):
        cluster.apply({**CONFIG, "data": {"x": "2"}})
    assert cluster.apply({**CONFIG, "data": {"x": "2"}}, force=True)["data"] == {"x": "2"}


JOB_OBJECT = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {}}
IMMUTABLE = {"causes": [{"reason": "FieldValueInvalid", "field": "spec.template",
                         "message": "Invalid value: field is immutable"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ApiError(403, 'jobs.batch "a" is forbidden: exceeded quota: q'), "kubectl describe quota"),
        (ApiError(403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"'),
         "kubernetes.pod_security"),
        (ApiError(400, 'admission webhook "w" denied the request: no'), "A policy of the cluster"),
        (ApiError(422, "is invalid: spec.template", details=IMMUTABLE), "made anew"),
        (ApiError(400, 'strict decoding error: unknown field "spec.x"'), "another version"),
        (ApiError(404, 'namespaces "default" not found',
                  details={"name": "default", "kind": "namespaces"}), "create namespace"),
        (ApiError(418, "teapot"), "HTTP 418: teapot"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(
    cluster: Cluster, server: ApiServer, error: ApiError, words: str
) -> None:
    server.store.admissions.append(lambda new, old: error)
    with pytest.raises(BackendError) as refused:
        cluster.apply(JOB_OBJECT)
    assert words in str(refused.value)
    assert "patch jobs.batch a in default" in str(refused.value)


def test_a_watch_goes_on_from_a_list(cluster: Cluster, server: ApiServer) -> None:
    cluster.apply(CONFIG)
    _, version = cluster.snapshot(CONFIG_MAP)
    cluster.apply({**CONFIG, "data": {"x": "2"}})
    type_, thing = next(cluster.watch(CONFIG_MAP, version))
    assert (type_, thing["data"]) == ("MODIFIED", {"x": "2"})


def test_a_watch_from_too_long_ago(cluster: Cluster, server: ApiServer) -> None:
    cluster.apply(CONFIG)
    _, version = cluster.snapshot(CONFIG_MAP)
    server.store.compact()
    with pytest.raises(Gone):
        list(cluster.watch(CONFIG_MAP, version, timeout_s=1))


@pytest.mark.parametrize("fault", [{"drop": True}, {"cut_after_lines": 0}, {"status": 503}, {}])
def test_a_change_is_awaited(cluster: Cluster, server: ApiServer, fault: dict[str, Any]) -> None:
    """It may be heard of late, and what breaks a watch is no error: whoever waits looks again."""
    cluster.apply(CONFIG)
    _, version = cluster.snapshot(CONFIG_MAP, "run=a")
    if fault:
        server.fail("watch=true", times=9, **fault)
    else:
        cluster.apply({**CONFIG, "data": {"x": "2"}})
    cluster.await_change(CONFIG_MAP, version, "run=a", 2)
    assert any("watch=true" in request for request in server.requests)


def test_a_change_from_too_long_ago_is_looked_for_again(
    cluster: Cluster, server: ApiServer
) -> None:
    cluster.apply(CONFIG)
    _, version = cluster.snapshot(CONFIG_MAP)
    server.store.compact()
    cluster.await_change(CONFIG_MAP, version, "", 60)


def test_many_objects_come_in_pages(
    cluster: Cluster, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_client, "PAGE_LENGTH", 2)
    for number in range(5):
        server.create({**CONFIG, "metadata": {"name": f"c-{number}"}})
    assert len(cluster.objects(CONFIG_MAP)) == 5


def test_all_kinds_have_paths(cluster: Cluster) -> None:
    assert JOB.path("ns", "a/b") == "/apis/batch/v1/namespaces/ns/jobs/a%2Fb"
    assert CONFIG_MAP.path("ns") == "/api/v1/namespaces/ns/configmaps"
    assert kubernetes_kinds.BY_NAME[("batch/v1", "Job")] is JOB
