"""Where the API server is: kubeconfigs as people have them, and the account of a pod."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from k8s.apiserver import TOKEN, ApiServer
from orchestrator.backends import kubernetes_config
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_config import access_of
from orchestrator.backends.kubernetes_kinds import CONFIG_MAP
from orchestrator.errors import BackendError


def edit(server: ApiServer, **parts: object) -> None:
    """Change parts of the kubeconfig."""
    config = json.loads(server.kubeconfig.read_text())
    server.kubeconfig.write_text(json.dumps({**config, **parts}))


def context(name: str, **parts: str) -> dict[str, object]:
    return {"name": name, "context": {"cluster": "test", "user": "tester", **parts}}


def test_the_current_context_and_its_namespace(server: ApiServer) -> None:
    edit(
        server, contexts=[context("a", namespace="team"), context("b")], **{"current-context": "a"}
    )
    assert (access_of(None).label, access_of(None).namespace) == ("context a", "team")
    assert (access_of("b").label, access_of("b").namespace) == ("context b", "default")
    assert Cluster(context="b", wanted_namespace="other").namespace == "other"


def test_a_context_that_is_not_there(server: ApiServer) -> None:
    with pytest.raises(BackendError, match=r'no context "nope"; there are: test\. .*get-contexts'):
        access_of("nope")


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BackendError, match=r"no kubeconfig: the default place is ~/.kube/config"):
        access_of(None)
    monkeypatch.setenv("KUBECONFIG", "/no/such")
    with pytest.raises(BackendError, match=r"no kubeconfig: \$KUBECONFIG names /no/such"):
        access_of(None)


@pytest.mark.parametrize("text", ["", "a: [", "a: b", "- 1", '{"contexts": 3}', "\x00"])
def test_a_file_that_is_no_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(BackendError, match=f"{path}: "):
        access_of(None)


def test_the_library_is_not_installed(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(BackendError, match=r"pip install orchestrate-training\[k8s\]"):
        access_of(None)


def test_several_files_are_one(server: ApiServer, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", f"/no/such:{server.kubeconfig}")
    assert access_of(None).label == "context test"


def test_the_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text("pods-own")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kubernetes_config, "POD_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = access_of(None)
    assert (access.host, access.namespace) == ("https://10.0.0.1:443", "pods-own")


def test_a_plug_in_is_run_again_when_its_credentials_have_expired(
    server: ApiServer, tmp_path: Path
) -> None:
    """As a cloud's does: each call gives what is right by then."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    program = (
        "import json, sys; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', "
        f"'kind': 'ExecCredential', 'status': {{'token': open({str(token)!r}).read()}}}}))"
    )
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable,
              "args": ["-c", program], "interactiveMode": "Never"}  # fmt: skip
    edit(server, users=[{"name": "tester", "user": {"exec": plugin}}])
    cluster = Cluster()
    assert cluster.objects(CONFIG_MAP) == []
    server.token = "renewed"
    token.write_text("renewed")
    assert cluster.objects(CONFIG_MAP) == []
    token.write_text("wrong")
    server.token = "renewed again"
    with pytest.raises(BackendError, match="Log in again"):
        cluster.objects(CONFIG_MAP)
    token.unlink()
    with pytest.raises(BackendError, match=f"the plug-in {sys.executable} gave no credentials"):
        cluster.objects(CONFIG_MAP)
