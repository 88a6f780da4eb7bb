"""Where the API server is and who asks it: the kubeconfig, or the account of the pod."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.kubernetes_kubeconfig import check, check_token, plugin_fault
from orchestrator.errors import BackendError

# Kubernetes documentation, "Accessing the Kubernetes API from a Pod".
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_FILE = "~/.kube/config"


@dataclass(frozen=True)
class Access:
    """Args:
    configuration: the client's.
    label: the context, for people.
    namespace: the context's; `default` where it names none.
    """

    configuration: Any
    label: str
    namespace: str

    @property
    def host(self) -> str:
        """The server's address."""
        return str(self.configuration.host)

    def dynamic_client(self) -> Any:
        """The official client's, which looks nothing up before it is asked."""
        from kubernetes.client import ApiClient
        from kubernetes.dynamic import DynamicClient

        # urllib3's own repetitions would be on top of ours, and obey any Retry-After.
        self.configuration.retries = False
        client = ApiClient(self.configuration)
        return DynamicClient(client, discoverer=lambda _client, _file: None)


def access_of(context: str | None) -> Access:
    """By the kubeconfig; by the account of the pod where there is none and this is a pod.

    Raises BackendError if neither is there, or has no such context.
    """
    try:
        from kubernetes.config import ConfigException
    except ImportError as error:
        raise BackendError(
            f"Kubernetes' client is not installed ({error}): pip install orchestrate-training[k8s]"
        ) from None
    files = os.environ.get("KUBECONFIG") or DEFAULT_FILE
    try:
        if context is None and not _exists(files) and "KUBERNETES_SERVICE_HOST" in os.environ:
            return _in_cluster()
        return _from_file(files, context)
    except (ConfigException, OSError) as error:
        raise BackendError(_words(files, context, str(error))) from None


def _exists(files: str) -> bool:
    return any(Path(f).expanduser().is_file() for f in files.split(os.pathsep) if f)


def _is_folder(files: str) -> bool:
    return any(Path(f).expanduser().is_dir() for f in files.split(os.pathsep) if f)


def _in_cluster() -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import load_incluster_config

    configuration = Configuration()
    load_incluster_config(configuration)
    check_token(None, list(configuration.api_key.values()))
    namespace = POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.is_file() else ""
    return Access(configuration, "this pod's cluster", namespace or "default")


def _from_file(files: str, context: str | None) -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

    configuration, user = Configuration(), check(files, context)
    try:
        contexts, current = list_kube_config_contexts(files)
        named = current if context is None else _named(contexts, context)
        with unlogged() as said:
            load_kube_config(files, named["name"], configuration)
    except (ConfigException, OSError):
        raise
    except Exception as error:  # the library lets all through; its words may have a secret in them
        kind = type(error).__name__
        raise ConfigException(f"Kubernetes' client cannot read this kubeconfig ({kind})") from None
    if said and user is not None and user.get("exec"):
        raise plugin_fault(user, said[-1])
    check_token(user, list(configuration.api_key.values()))
    namespace = (named.get("context") or {}).get("namespace")
    return Access(configuration, f"context {named['name']}", namespace or "default")


@contextmanager
def unlogged() -> Iterator[list[str]]:
    """What the client logs as an error meanwhile, which would be raw lines on the terminal: it goes
    on without credentials where a plug-in fails, and says so only there."""
    kept = _Kept()
    root = logging.getLogger()
    root.addHandler(kept)
    try:
        yield kept.said
    finally:
        root.removeHandler(kept)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "root":
            self.said.append(record.getMessage())


def _named(contexts: Any, name: str) -> Any:
    from kubernetes.config import ConfigException

    found = next((one for one in contexts if one["name"] == name), None)
    if found is None:
        known = ", ".join(one["name"] for one in contexts) or "none"
        raise ConfigException(f'no context "{name}"; there are: {known}')
    return found


def _words(files: str, context: str | None, reason: str) -> str:
    if not _exists(files):
        where = "$KUBECONFIG names" if os.environ.get("KUBECONFIG") else "the default place is"
        what = "that is a folder" if _is_folder(files) else "there is no such file"
        return (
            f"no kubeconfig: {where} {files}, and {what}. Get one from whoever runs "
            "the cluster, or by your provider's command, and name it by KUBECONFIG."
        )
    fix = "`kubectl config get-contexts` shows what is there"
    named = "; kubernetes.context of the profile chooses one" if context else ""
    # The client names an entry by all that it holds, secrets too.
    shown = re.sub(r"\{.*\}", "...", " ".join(reason.split()))
    return f"{files}: {shown.rstrip('.')}. {fix}{named}."
