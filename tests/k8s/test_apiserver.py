"""The test's API server answers the official client as a real one does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.answers import ApiError
from k8s.apiserver import ApiServer
from k8s.discovery import Json


@pytest.fixture
def api(server: ApiServer) -> Iterator[Any]:
    """The official client."""
    from kubernetes import config

    found = config.new_client_from_config(str(server.kubeconfig))
    yield found
    found.rest_client.pool_manager.clear()


@pytest.fixture
def dynamic(api: Any, tmp_path: Path) -> Any:
    from kubernetes.dynamic import DynamicClient

    return DynamicClient(api, cache_file=str(tmp_path / "discovery"))


@pytest.fixture
def jobs(dynamic: Any) -> Any:
    return dynamic.resources.get(api_version="batch/v1", kind="Job")


def job(name: str = "demo", **spec: Any) -> Json:
    metadata = {"name": name, "labels": {"run": name}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def pod(name: str = "demo-0") -> Json:
    spec = {"containers": [{"name": "node"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def apply(jobs: Any, body: Json, **more: Any) -> Json:
    more.setdefault("field_manager", "orchestrate")
    done: Json = jobs.server_side_apply(body=body, namespace="default", **more).to_dict()
    return done


def test_objects_come_and_go(jobs: Any, server: ApiServer) -> None:
    made = jobs.create(body=job(suspend=True), namespace="default")
    assert (made.metadata.generation, made.spec.suspend) == (1, True)
    patch = {"spec": {"suspend": False}}
    jobs.patch(body=patch, name="demo", namespace="default",
               content_type="application/merge-patch+json")  # fmt: skip
    found = jobs.get(name="demo", namespace="default")
    assert (found.metadata.generation, found.spec.suspend) == (2, False)
    assert int(found.metadata.resourceVersion) > int(made.metadata.resourceVersion)
    assert [j.metadata.name for j in jobs.get(label_selector="run in (demo)").items] == ["demo"]
    assert jobs.get(label_selector="run!=demo").items == []
    assert len(jobs.get(field_selector="metadata.name=demo").items) == 1
    jobs.delete(name="demo", namespace="default", body={"propagationPolicy": "Foreground"})
    assert server.list("jobs") == []


def test_errors_are_those_of_a_real_server(jobs: Any, server: ApiServer) -> None:
    from kubernetes.dynamic import exceptions

    jobs.create(body=job(), namespace="default")
    with pytest.raises(exceptions.ConflictError, match="already exists"):
        jobs.create(body=job(), namespace="default")
    with pytest.raises(exceptions.NotFoundError, match=r'jobs.batch \\"other\\" not found'):
        jobs.get(name="other", namespace="default")
    stale = jobs.get(name="demo", namespace="default").to_dict()
    server.set("jobs", "demo", status={"active": 1})
    with pytest.raises(exceptions.ConflictError, match="the object has been modified"):
        jobs.replace(body=stale, namespace="default")
    server.forbidden.add(("delete", "jobs"))
    with pytest.raises(exceptions.ForbiddenError, match='cannot delete resource \\\\"jobs'):
        jobs.delete(name="demo", namespace="default")
    server.token = "another"
    with pytest.raises(exceptions.UnauthorizedError):
        jobs.get(name="demo", namespace="default")


def test_apply_names_the_manager_that_holds_a_field(jobs: Any, server: ApiServer) -> None:
    from kubernetes.dynamic.exceptions import ConflictError

    first = apply(jobs, job(parallelism=1, completions=1))
    assert apply(jobs, job(parallelism=1, completions=1)) == first  # nothing changes
    jobs.patch(body={"spec": {"parallelism": 2}}, name="demo", namespace="default",
               content_type="application/merge-patch+json", field_manager="kubectl")  # fmt: skip
    with pytest.raises(ConflictError) as raised:
        apply(jobs, job(parallelism=3, completions=1))
    assert 'conflict with \\"kubectl\\" using batch/v1: .spec.parallelism' in str(raised.value)
    apply(jobs, job(parallelism=3), force_conflicts=True)
    assert server.get("jobs", "demo")["spec"] == {"parallelism": 3}  # completions is nobody's


def test_apply_refuses_a_list_that_has_an_entry_twice(jobs: Any, server: ApiServer) -> None:
    env = [{"name": "HOME", "value": value} for value in ("/tmp", "/root")]
    pod = {"containers": [{"name": "node", "env": env}]}
    with pytest.raises(Exception, match="env: duplicate entries for key") as raised:
        apply(jobs, job(template={"spec": pod}))
    assert raised.value.status == 500  # type: ignore[attr-defined]
    assert server.list("jobs") == []


def test_a_dry_run_changes_nothing(jobs: Any, server: ApiServer) -> None:
    server.store.admissions.append(
        lambda new, old: ApiError(403, "denied the request") if new["spec"].get("bad") else None
    )
    assert apply(jobs, job(parallelism=1), dry_run="All")["spec"] == {"parallelism": 1}
    assert server.list("jobs") == []
    from kubernetes.dynamic.exceptions import ForbiddenError

    with pytest.raises(ForbiddenError, match="denied the request"):
        apply(jobs, job(bad=True), dry_run="All")


def test_what_an_object_owns_goes_with_it(server: ApiServer) -> None:
    owner = server.create(job())
    reference = {"kind": "Job", "name": "demo", "uid": owner["metadata"]["uid"]}
    owned = pod()
    owned["metadata"]["ownerReferences"] = [reference]
    server.create(owned)
    server.store.graceful_pods = True
    server.delete("jobs", "demo")
    assert server.list("jobs") == []
    assert "deletionTimestamp" in server.get("pods", "demo-0")["metadata"]
    server.delete("pods", "demo-0")
    assert server.list("pods") == []


def test_a_watch_shows_each_change_in_order(jobs: Any, server: ApiServer) -> None:
    server.create(job("old"))
    begun = jobs.get(namespace="default").metadata.resourceVersion
    server.create(job("demo"))
    server.create(job("other"))
    server.set("jobs", "demo", status={"active": 1})
    server.delete("jobs", "demo")
    events = jobs.watch(namespace="default", resource_version=begun, timeout=1,
                        label_selector="run=demo", allow_watch_bookmarks=True)  # fmt: skip
    shown = [(e["type"], e["raw_object"]["metadata"].get("name")) for e in events]
    changes = [("ADDED", "demo"), ("MODIFIED", "demo"), ("DELETED", "demo")]
    assert shown == [*changes, ("BOOKMARK", None)]


def test_a_watch_from_a_forgotten_version_is_410(jobs: Any, server: ApiServer) -> None:
    from kubernetes.client.rest import ApiException

    begun = jobs.get(namespace="default").metadata.resourceVersion
    server.store.compact()
    with pytest.raises(ApiException) as raised:
        list(jobs.watch(namespace="default", resource_version=begun, timeout=5))
    assert raised.value.status == 410


def test_faults_come_as_often_as_they_are_wanted(api: Any, jobs: Any, server: ApiServer) -> None:
    from kubernetes.dynamic import exceptions

    api.configuration.retries = False
    server.fail("GET .*/jobs/demo", status=500, message="boom", times=2)
    for _ in range(2):
        with pytest.raises(exceptions.InternalServerError, match="boom"):
            jobs.get(name="demo", namespace="default")
    with pytest.raises(exceptions.NotFoundError):
        jobs.get(name="demo", namespace="default")


def test_logs_are_followed_to_their_end(api: Any, server: ApiServer) -> None:
    from kubernetes import client

    server.create(pod())
    server.logs.write("demo-0", "old", at="2026-11-30T10:00:00.000000001Z")
    server.logs.restart("demo-0")
    server.logs.write("demo-0", "one\ntwo", at="2026-11-30T10:00:05.000000001Z")
    core = client.CoreV1Api(api)
    assert core.read_namespaced_pod_log("demo-0", "default", previous=True) == "old\n"
    stream = core.read_namespaced_pod_log("demo-0", "default", follow=True, timestamps=True,
                                          _preload_content=False)  # fmt: skip
    lines = iter(stream)
    read = [next(lines)]
    threading.Thread(target=_finish, args=(server,)).start()
    text = b"".join([*read, *lines])
    assert text.endswith(b"three\n")
    assert text.startswith(b"2026-11-30T10:00:05.000000001Z one\n2026-11-30T10:00:05.000000001Z tw")


def _finish(server: ApiServer) -> None:
    server.logs.write("demo-0", "three", at="2026-11-30T10:00:06.000000001Z")
    server.logs.end("demo-0")


def test_exec_runs_a_command(api: Any, server: ApiServer) -> None:
    from kubernetes import client
    from kubernetes.stream import stream

    server.create(pod())
    # stream() changes the client that it is given, so it gets one of its own
    core = client.CoreV1Api(client.ApiClient(api.configuration))
    script = "read -r line; echo out $line; echo err >&2; exit 3"
    shell = stream(core.connect_get_namespaced_pod_exec, "demo-0", "default",
                   command=["sh", "-c", script], stdin=True, stdout=True, stderr=True,
                   _preload_content=False)  # fmt: skip
    shell.write_stdin("ham\n")
    shell.run_forever(timeout=20)
    assert shell.read_channel(1) == "out ham\n"
    assert shell.read_channel(2) == "err\n"
    assert shell.returncode == 3
    shell.sock.shutdown()  # close() leaves the socket open where the server has closed first
