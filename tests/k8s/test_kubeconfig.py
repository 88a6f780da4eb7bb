"""Kubeconfigs with a fault: the field is named, and no secret is shown."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.apiserver import ApiServer
from k8s.site import Cli, Site
from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_config import access_of
from orchestrator.backends.kubernetes_kinds import CONFIG_MAP
from orchestrator.backends.kubernetes_kubeconfig import (
    Entry,
    _check_cluster,
    _without_password,
)
from orchestrator.errors import BackendError

SECRET = "s3cret"
V1 = "client.authentication.k8s.io/v1"


def change(server: ApiServer, part: str, fields: dict[str, object]) -> None:
    """Change fields of the kubeconfig's cluster, or give its user others."""
    config = json.loads(server.kubeconfig.read_text())
    (one,) = config[f"{part}s"]
    one[part] = fields if part == "user" else {**one[part], **fields}
    server.kubeconfig.write_text(json.dumps(config))


def refused() -> str:
    """What a request is told."""
    with pytest.raises(BackendError) as error:
        Cluster(pauses_s=()).objects(CONFIG_MAP)
    assert SECRET not in str(error.value)
    return str(error.value)


CLUSTER: list[tuple[str, object, str]] = [
    ("server", f"http://user:{SECRET}@127.0.0.1:1", "a user and a password in the address"),
    ("server", f"http://u:{SECRET}@127.0.0.1:99999", '"http://127.0.0.1:99999" is no address'),
    ("server", "ftp://x", '"ftp://x" is no address that can be used. It must be https://'),
    ("server", "https://x:99999", '"https://x:99999" is no address'),
    ("server", "https://[::1", "is no address"),
    ("server", "x:6443", "is no address"),
    ("server", 6443, "it must be a text"),
    ("server", None, "it has no value"),
    ("server", "", "is no address"),
    ("proxy-url", "proxy:3128", '"proxy:3128" is no address that can be used. It must be http://'),
    ("proxy-url", f"socks5://u:{SECRET}@proxy:1080", "for SOCKS install PySocks"),
    ("proxy-url", f"u:{SECRET}@proxy:1080", '"proxy:1080" is no address'),
    ("certificate-authority-data", "abc", "it is not base64 of a PEM file"),
    ("certificate-authority-data", base64.b64encode(b"no").decode(), "it is not base64 of a PEM"),
]
USER: list[tuple[str, object, str]] = [
    ("token", f"{SECRET}\n", "its token (token, tokenFile or exec) has a character"),
    ("token", f"{SECRET}-\u0142", "its token (token, tokenFile or exec) has a character"),
    ("token", f"{SECRET}-\xe9", "its token (token, tokenFile or exec) has a character"),
    ("token", None, "it has no value"),
    ("token", 5, "it must be a text: put it in quotes"),
    ("password", f"{SECRET}\u0142", "only ASCII characters can be sent"),
    ("client-key-data", SECRET, "it is not base64 of a PEM file"),
    ("auth-provider", {"name": "gcp"}, "gke-gcloud-auth-plugin"),
    ("auth-provider", "gcp", "it must be a mapping"),
    ("exec", {"apiVersion": V1}, "it must be there, and a text"),
    ("exec", {"apiVersion": V1, "command": "x", "args": [5]}, "put numbers in quotes"),
    ("exec", {"apiVersion": V1, "command": "x", "env": ["A=1"]}, "a list of name and value"),
]


@pytest.mark.parametrize(("field", "value", "words"), CLUSTER)
def test_a_field_of_the_cluster(server: ApiServer, field: str, value: object, words: str) -> None:
    change(server, "cluster", {field: value})
    text = refused()
    assert text.startswith(f"{server.kubeconfig}: clusters[test].cluster.{field}: ")
    assert words in text


@pytest.mark.parametrize(("field", "value", "words"), USER)
def test_a_field_of_the_user(server: ApiServer, field: str, value: object, words: str) -> None:
    change(server, "user", {field: value})
    text = refused()
    assert text.startswith(f"{server.kubeconfig}: users[tester].user")
    assert words in text
    assert field in text


@pytest.mark.parametrize("part", ["clusters", "contexts", "users"])
@pytest.mark.parametrize("value", [{"a": 1}, ["a"], [{"name": 1}], "text"])
def test_a_list_that_is_none(server: ApiServer, part: str, value: object) -> None:
    config = json.loads(server.kubeconfig.read_text()) | {part: value}
    server.kubeconfig.write_text(json.dumps(config))
    assert re.match(rf"{server.kubeconfig}: {part}(\[0\])?: it must ", refused())


def test_the_clients_words_show_no_secret(server: ApiServer) -> None:
    """It names an entry by all that it holds."""
    provider = {"name": "oidc", "config": {"refresh-token": SECRET}}
    change(server, "user", {"token": SECRET, "auth-provider": provider})
    assert re.search(r"Expected key id-token in .*/user/auth-provider/config", refused())


def test_a_token_of_a_file(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    change(server, "user", {"tokenFile": str(tmp_path / "token")})
    assert "has a character that no HTTP header may have" in refused()


def plugin(server: ApiServer, **parts: object) -> None:
    plug_in = {"apiVersion": V1, "interactiveMode": "Never", **parts}
    change(server, "user", {"exec": plug_in})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"command": "no-such-plug-in"}, "is it installed, and in $PATH? Install it"),
        ({"command": "no-such-plug-in", "installHint": "See x.org"}, "in $PATH? See x.org"),
        ({"command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]},
         "exec: process returned 3. log in first. Run it"),
        ({"command": "echo", "args": ["hello"]}, "exec: failed to decode process output"),
    ],
)  # fmt: skip
def test_a_plug_in_without_credentials_is_named(
    server: ApiServer, tmp_path: Path, cli: Cli, parts: dict[str, Any], words: str
) -> None:
    """It is not called expired credentials, and the client's raw log lines are not shown."""
    plugin(server, **parts)
    site = Site(server, tmp_path, "job", cli)
    code, text = site.run("status", "demo")
    assert code == 1
    named = f"users[tester].user.exec: the plug-in {parts['command']} gave no credentials: "
    assert named in text
    assert words in text
    assert "ERROR:root" not in text
    assert len(text.splitlines()) == 1
    assert server.requests == []


def test_a_proxy_of_the_environment(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no field of the kubeconfig; the client's words could have a password in them."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"u:{SECRET}@proxy:3128")
    assert "the request cannot be made" in (text := refused())
    assert "$HTTPS_PROXY" in text


def test_a_folder_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    with pytest.raises(BackendError, match=f"{tmp_path}: a folder, and no kubeconfig"):
        access_of(None)


@given(st.text(), st.sampled_from(["http", "https", "ftp", "socks5", ""]), st.text())
def test_no_address_shows_its_password(before: str, scheme: str, after: str) -> None:
    url = f"{scheme}://{before}{SECRET}@{after}"
    assert SECRET not in _without_password(url)
    assert SECRET not in _without_password(url.removeprefix("://"))
    with pytest.raises(BackendError) as refused:
        _check_cluster(Entry("x", {"server": url}))
    assert SECRET not in str(refused.value)
