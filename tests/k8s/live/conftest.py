"""The clusters that the suite asks: a real one where the environment names it, and the one of
tests/k8s/lab.py, which is always there but for machines without namespaces."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from k8s.apiserver import ApiServer
from k8s.lab import Lab
from k8s.live.site import GONE_S, Site, eventually
from k8s.manifests import run_locally
from k8s.network import Network, missing
from slurm.training import Outcome, outcome

PREFIX = "ORCHESTRATE_TEST_"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster on this machine."""
    if reason := missing():
        pytest.skip(f"pods need namespaces of their own: {reason}")
    folder = tmp_path_factory.mktemp("lab")
    runs, work = folder / "runs", folder / "work"
    runs.mkdir()
    work.mkdir()
    network = Network()
    try:
        with (
            ApiServer(folder) as server,
            Lab(server, folder / "pods", network, {"runs": runs}),
        ):
            facts = {"runs": {"pvc": "runs"}}
            yield Site(str(server.kubeconfig), "default", facts, work, runs)
    finally:
        network.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster that the environment names, with a namespace of the tests' own."""
    kubeconfig, image = os.environ.get(f"{PREFIX}KUBECONFIG"), os.environ.get(f"{PREFIX}IMAGE")
    if not kubeconfig or not image:
        pytest.skip(f"needs a cluster: {PREFIX}KUBECONFIG=... {PREFIX}IMAGE=... make test-k8s")
    given = os.environ.get(f"{PREFIX}NAMESPACE", "")
    namespace = given or f"orchestrate-test-{uuid.uuid4().hex[:8]}"
    words = os.environ.get(f"{PREFIX}TARGETS", "pytorchjob,trainjob,jobset,job").split(",")
    work = tmp_path_factory.mktemp("work")
    site = Site(kubeconfig, namespace, facts_of(image, namespace), work, None, tuple(words))
    if given:
        yield site
        return
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}  # for hostPath
    body = {"metadata": {"name": namespace, "labels": labels}}
    site.core.create_namespace(body)
    try:
        yield site
    finally:
        site.core.delete_namespace(namespace)
        eventually(lambda: not is_there(site, namespace), GONE_S)


def is_there(site: Site, namespace: str) -> bool:
    with suppress(client.ApiException):
        site.core.read_namespace(namespace)
        return True
    return False


def facts_of(image: str, namespace: str) -> dict[str, Any]:
    """The profile's `kubernetes` as the environment has it."""
    volume = os.environ.get(f"{PREFIX}RUNS_VOLUME", "host_path:/tmp/orchestrate-test")
    kind, _, value = volume.partition(":")
    if kind not in ("host_path", "pvc", "nfs") or not value:
        pytest.fail(
            f"{PREFIX}RUNS_VOLUME={volume}: host_path:/FOLDER, pvc:NAME or nfs:SERVER:/PATH"
        )
    facts: dict[str, Any] = {"image": image, "runs": {kind: value}}
    if kind == "host_path":  # the kubelet makes the folder, as root
        facts["runs"] = {kind: f"{value}/{namespace}"}
        facts |= {"pod_security": "none", "run_as_user": 0, "run_as_group": 0, "fs_group": None}
    if source := os.environ.get(f"{PREFIX}LAUNCHER_FROM"):
        facts["launcher_from"] = source
    return facts | dict(json.loads(os.environ.get(f"{PREFIX}FACTS", "{}")))


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The cluster and target that a test's parameters name."""
    name, target = request.param
    found = request.getfixturevalue(name)
    assert isinstance(found, Site)
    if reason := found.lacks(target):
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the job on the local backend, undisturbed."""
    return run_locally(tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def straight(local_run: Path) -> Outcome:
    """What comes out of the job if nothing happens."""
    return outcome(local_run)
