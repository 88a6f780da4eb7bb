"""What is wrong in a kubeconfig, by the name of the field and without its value where that is
secret: the client's own words name neither. Its fields are those of client-go, clientcmd/api/v1."""

from __future__ import annotations

import base64
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.backends.kubernetes_reasons import short
from orchestrator.errors import BackendError, quoted
from orchestrator.source import plain

PARTS = ("clusters", "contexts", "users")
TEXTS = {
    "cluster": ("server", "proxy-url", "certificate-authority", "certificate-authority-data",
                "tls-server-name"),
    "user": ("token", "tokenFile", "username", "password", "client-certificate", "client-key",
             "client-certificate-data", "client-key-data"),
    "context": ("cluster", "user", "namespace"),
}  # fmt: skip
# Removed from kubectl in Kubernetes 1.26.
REMOVED_PROVIDERS = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin"}


@dataclass(frozen=True)
class Entry:
    """One cluster, context or user.

    Args:
        where: its file and its place in it.
        content: its fields.
    """

    where: str
    content: Mapping[str, Any]

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def fault(self, key: str, words: str) -> BackendError:
        return BackendError(f"{self.where}.{key}: {words}")


def check(files: str, context: str | None) -> Entry | None:
    """The user of a context, after a look at all of its fields; None where the context names none.

    A context or file that is not there is left to the client, which tells it well.

    Args:
        files: as KUBECONFIG has them.
        context: its current one without.

    Raises:
        BackendError: a field is wrong, or a file is none.
        OSError: a file cannot be read.
    """
    paths = [Path(file).expanduser() for file in files.split(os.pathsep) if file]
    configs = [(path, _read(path)) for path in paths if path.exists()]
    current = [config["current-context"] for _, config in configs if "current-context" in config]
    named = _find(configs, "contexts", context or (current[-1] if current else None))
    if named is None:
        return None
    cluster = _find(configs, "clusters", named.get("cluster"))
    user = _find(configs, "users", named.get("user"))
    if cluster is not None:
        _check_cluster(cluster)
    if user is not None:
        _check_user(user)
    return user


def check_token(user: Entry | None, tokens: Sequence[object]) -> None:
    """Raises BackendError for a token that no HTTP header may have; its text is not shown."""
    if all(isinstance(token, str) and token.isascii() and token.isprintable() for token in tokens):
        return
    where = f"{user.where}: its token (token, tokenFile or exec)" if user else "the pod's token"
    raise BackendError(
        f"{where} has a character that no HTTP header may have, such as a line break at its end. "
        "Write it anew, without."
    )


def plugin_fault(user: Entry, said: str) -> BackendError:
    """The error of a plug-in that gave no credentials.

    said: what the client says of it, which is nothing of use where it had the terminal.
    """
    plugin = user.content["exec"]
    command, hint = str(plugin.get("command")), str(plugin.get("installHint") or "")
    words, fix = "it has failed" if "'NoneType'" in said else said, "Run it to see what it wants"
    if said.startswith("[Errno "):  # it could not be started
        words, fix = f"{said}: is it installed, and in $PATH?", hint or "Install it"
    text = short(f"the plug-in {command} gave no credentials: {words}")
    return user.fault("exec", f"{text}{'' if text[-1] in '.?' else '.'} {short(fix)}")


def _read(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise BackendError(f"{path}: a folder, and no kubeconfig. Name the file (KUBECONFIG)")
    try:
        config = plain(path.read_text(encoding="utf-8"))
    except UnicodeError:
        raise BackendError(f"{path}: not a kubeconfig: no text in UTF-8") from None
    except ValueError as error:
        raise BackendError(f"{path}: not a kubeconfig: {short(str(error))}") from None
    for part in PARTS:
        _check_list(path, part, config.get(part) or [])
    return config


def _check_list(path: Path, part: str, entries: object) -> None:
    if not isinstance(entries, list):
        raise BackendError(f"{path}: {part}: it must be a list")
    for number, one in enumerate(entries):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise BackendError(f"{path}: {part}[{number}]: it must have a name, which is a text")


def _find(configs: Sequence[tuple[Path, Any]], part: str, name: object) -> Entry | None:
    """The first entry of a name, as all tools choose it, with texts where texts belong."""
    for path, config in configs:
        for one in config.get(part) or ():
            if one["name"] == name:
                return _entry(path, part, one)
    return None


def _entry(path: Path, part: str, one: Mapping[str, Any]) -> Entry:
    key = part[:-1]
    where, content = f"{path}: {part}[{one['name']}].{key}", one.get(key) or {}
    if not isinstance(content, dict):
        raise BackendError(f"{where}: it must be a mapping")
    entry = Entry(where, content)
    for field, value in content.items():
        if value is None and key != "context":  # the client looks whether it is there
            raise entry.fault(field, "it has no value: give one, or leave the field out")
    for field in TEXTS[key]:
        if not isinstance(entry.get(field), str | None):
            raise entry.fault(field, "it must be a text: put it in quotes")
    return entry


def _check_cluster(cluster: Entry) -> None:
    server = cluster.get("server") or ""
    parts = _check_url(cluster, "server", server, ("https", "http"))
    if "@" in parts.netloc:
        raise cluster.fault("server", "a user and a password in the address are not used: give "
                            "them by the user's fields, such as exec or token")  # fmt: skip
    if proxy := cluster.get("proxy-url"):
        socks = ("socks5", "socks5h") if importlib.util.find_spec("socks") else ()
        _check_url(cluster, "proxy-url", proxy, ("http", "https", *socks))
    _check_pem(cluster, "certificate-authority-data")


def _check_url(entry: Entry, key: str, url: str, schemes: Sequence[str]) -> Any:
    """Its parts. A password in it is not shown."""
    shown = quoted(_without_password(url), 100)
    allowed = " or ".join(f"{scheme}://HOST:PORT" for scheme in schemes)
    if url.startswith("socks") and "socks5" not in schemes:
        allowed += "; for SOCKS install PySocks"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number or too great, or a broken IPv6 address
        is_good = False
    if not is_good or not url.isprintable() or " " in url:
        raise entry.fault(key, f"{shown} is no address that can be used. It must be {allowed}")
    return parts


def _without_password(url: str) -> str:
    """All that may be a user and a password is left out, also where it is no good address."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if "@" not in scheme else "(with a password)"


def _check_user(user: Entry) -> None:
    for key in ("client-certificate-data", "client-key-data"):
        _check_pem(user, key)
    for key in ("username", "password"):
        if not (user.get(key) or "").isascii():
            raise user.fault(key, "only ASCII characters can be sent")
    for key in ("auth-provider", "exec"):
        if not isinstance(user.get(key) or {}, dict):
            raise user.fault(key, "it must be a mapping")
    provider = (user.get("auth-provider") or {}).get("name")
    if plugin := REMOVED_PROVIDERS.get(str(provider)):
        raise user.fault("auth-provider", f"the form {provider} was removed in Kubernetes 1.26: "
                         f"use an exec plug-in ({plugin}); your provider's command for "
                         "getting a kubeconfig writes it")  # fmt: skip
    if plugin_fields := user.get("exec"):
        _check_exec(user, plugin_fields)


def _check_exec(user: Entry, plugin: Mapping[str, Any]) -> None:
    for key in ("command", "apiVersion"):
        if not isinstance(plugin.get(key), str):
            raise user.fault(f"exec.{key}", "it must be there, and a text")
    args = plugin.get("args") or []
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise user.fault("exec.args", "it must be a list of texts: put numbers in quotes")
    env = plugin.get("env") or []
    if not isinstance(env, list) or not all(_is_variable(one) for one in env):
        raise user.fault("exec.env", "it must be a list of name and value, which are texts")


def _is_variable(one: object) -> bool:
    return isinstance(one, dict) and all(isinstance(one.get(k), str) for k in ("name", "value"))


def _check_pem(entry: Entry, key: str) -> None:
    value = entry.get(key)
    if not value:
        return
    try:
        content = base64.b64decode(value)
    except ValueError:
        content = b""
    if b"-----BEGIN " not in content:
        raise entry.fault(key, "it is not base64 of a PEM file (-----BEGIN ...); it may be cut off")
