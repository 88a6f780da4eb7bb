"""The run folder through a pod, and from the logs of pods where none can be entered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s.apiserver import ApiServer
from k8s.shapes import T0, T1, T2, finished, running
from orchestrator.backends.base import Handle
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_exec import NoPod, PodShell
from orchestrator.backends.kubernetes_kinds import TARGETS
from orchestrator.backends.kubernetes_store import PodRunStore, store_of
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.errors import BackendError

JOB = TARGETS["job"]
METRICS = [json.dumps({"step": n, "attempt": 1, "loss": 2.0}) for n in range(1, 4)]
LOG = "\n".join(
    ["[node] attempt 1: 2 nodes are here: a, b", "[rank 0 a] hello", f"[rank 1 a] {METRICS[0]}"]
    + [f"[rank 0 a] [metrics] {line}" for line in METRICS]
    + ["[rank 0 a] [metrics] {cut", "[node] attempt 1 ended with 0: done"]
)


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return Cluster(pauses_s=())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "demo"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def store(cluster: Cluster, folder: Path) -> PodRunStore:
    made = store_of(cluster, JOB, Handle("job", "demo", folder))
    assert isinstance(made, PodRunStore)
    return made


def test_a_running_pod_gives_the_whole_folder(
    server: ApiServer, store: PodRunStore, folder: Path
) -> None:
    server.create(running("job", 0))
    data = bytes(range(256)) * 400  # more than one frame each way
    store.write("checkpoints/one/model.bin", data)
    assert (folder / "checkpoints/one/model.bin").read_bytes() == data
    assert store.read("checkpoints/one/model.bin") == data
    assert store.tail("checkpoints/one/model.bin", len(data) - 5) == data[-5:]
    here = LocalRunStore(folder)
    name = 'an odd "name"\n$(x)'
    store.write(name, b"x")
    assert store.list() == here.list() == [name, "checkpoints"]
    files = store.files("checkpoints")
    assert {path: facts.size_bytes for path, facts in files.items()} == {"one/model.bin": 102400}
    paths = ["checkpoints/one/model.bin", name]
    assert store.sha256(paths) == here.sha256(paths)
    assert store.ends([*paths, "none"], 3) == [data[-3:], b"x", b""]
    assert (store.tail("none", 0), store.list("none")) == (b"", [])
    paths += ["checkpoints", "none"]
    assert store.kinds(paths) == here.kinds(paths) == ["file", "file", "folder", "missing"]
    with pytest.raises(BackendError, match="pod demo-0"):
        store.read("none")
    store.remove("checkpoints")
    assert here.list() == [name]


def test_without_a_pod_the_logs_tell_what_they_can(
    server: ApiServer, store: PodRunStore, folder: Path
) -> None:
    server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo"},
                   "data": {"trainer.json": '{"steps": 3}'}})  # fmt: skip
    head = finished("job", 0, 0)
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": "shared"}}
    head["spec"] |= {"volumes": [{"name": "tmp", "emptyDir": {}}, claim]}
    mounts = [
        {"name": "tmp", "mountPath": "/tmp/x"},
        {"name": "runs", "mountPath": str(folder.parent)},
    ]
    head["spec"]["containers"][0] |= {"volumeMounts": mounts}
    server.create(head)
    server.create(finished("job", 1, 0))
    server.logs.write("demo-0", LOG)
    server.logs.write("demo-1", "[rank 2 b] there\n[node] leaving with 0: done")
    assert store.tail("metrics.jsonl", 0).decode().splitlines() == METRICS
    assert store.list("attempts/1/logs") == [f"rank-0000{rank}.log" for rank in (0, 1, 2)]
    assert store.read("attempts/1/logs/rank-00002.log") == b"there\n"
    assert json.loads(store.read("attempts/1/end.json"))["reason"] == "done"
    assert store.read("rendered/trainer.json") == b'{"steps": 3}'
    assert store.ends(["metrics.jsonl", "goodput.jsonl"], 5) == [b"2.0}\n", b""]
    assert store.list("attempts") == ["1"]
    assert store.kinds(["metrics.jsonl", "attempts", "none"]) == ["file", "folder", "missing"]
    for ask in (lambda: store.files("checkpoints"), lambda: store.sha256(["a"]),
                lambda: store.read("job.yaml"), lambda: store.write("a", b"")):  # fmt: skip
        with pytest.raises(BackendError, match=r"lies on the claim shared, .*--reader-pod"):
            ask()


def test_who_may_not_enter_pods_reads_their_logs(server: ApiServer, store: PodRunStore) -> None:
    server.forbidden.add(("get", "pods/exec"))
    server.create(running("job", 0))
    server.logs.write("demo-0", LOG)
    assert store.tail("metrics.jsonl", 0).decode().splitlines() == METRICS
    with pytest.raises(BackendError, match="no permission"):
        store.files("checkpoints")


def test_a_reader_goes_on_where_it_was_when_the_pods_go_and_come(
    server: ApiServer, store: PodRunStore, folder: Path
) -> None:
    """The volume has an earlier attempt of which no pod is left."""
    earlier = [json.dumps({"step": n, "attempt": 0}) for n in range(5)]
    file = folder / "metrics.jsonl"
    file.write_text("\n".join([*earlier, *METRICS[:2], ""]))
    server.create(running("job", 0))
    server.logs.write("demo-0", LOG)
    read = store.tail("metrics.jsonl", 0)
    assert read.decode().splitlines() == [*earlier, *METRICS[:2]]
    server.delete("pods", "demo-0")
    server.create(finished("job", 0, 129))
    server.logs.write("demo-0", LOG)
    read += store.tail("metrics.jsonl", len(read))
    assert read.decode().splitlines() == [*earlier, *METRICS]
    assert store.tail("metrics.jsonl", len(read)) == b""
    file.write_text("\n".join([*earlier, *METRICS, "new", ""]))
    server.create(running("job", 0, created=T2, name="demo-0-b"))
    assert store.tail("metrics.jsonl", len(read)) == b"new\n"


def test_a_pod_that_is_gone_is_replaced_by_another(
    server: ApiServer, cluster: Cluster, tmp_path: Path
) -> None:
    shell = PodShell(cluster, JOB, "demo")
    with pytest.raises(NoPod, match="no pod of demo runs"):
        shell.shell("true")
    server.create(running("job", 1))
    assert shell.shell("echo one; exit 3").code == 3
    server.delete("pods", "demo-1")
    server.create(running("job", 0))
    done = shell.shell("head -c 3; echo err >&2", stdin=b"two")
    assert (done.code, done.stdout, done.stderr) == (0, "two", "err\n")
    assert shell.label.startswith("pod demo-0 (context test")
    server.fail("/exec", drop=True)
    with pytest.raises(BackendError, match="no answer from"):
        shell.shell("true")
    with pytest.raises(BackendError, match="did not end within"):
        shell.shell("sleep 5", timeout_s=0.2)


def test_the_pods_of_an_attempt_share_its_number(server: ApiServer, store: PodRunStore) -> None:
    for number, created, ended in ((1, T0, T1), (2, T2, "2026-11-30T11:00:00Z")):
        for node in (0, 1):
            name = f"demo-{node}-{number}"
            server.create(finished("job", node, 129, at=ended, created=created, name=name))
            server.logs.write(name, f"[rank {node} x] of attempt {number}")
        server.logs.write(f"demo-0-{number}", f"[node] attempt {number}: 2 nodes are here: a, b")
    for number in (1, 2):
        for rank in (0, 1):
            path = f"attempts/{number}/logs/rank-0000{rank}.log"
            assert store.read(path) == f"of attempt {number}\n".encode()
