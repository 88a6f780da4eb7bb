"""Where the API server is and who asks it: the kubeconfig, or the account of the pod."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def _in_cluster() -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import load_incluster_config

    configuration = Configuration()
    load_incluster_config(configuration)
    namespace = POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.is_file() else ""
    return Access(configuration, "this pod's cluster", namespace or "default")


def _from_file(files: str, context: str | None) -> Access:
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

    configuration = Configuration()
    try:
        contexts, current = list_kube_config_contexts(files)
        named = current if context is None else _named(contexts, context)
        load_kube_config(files, named["name"], configuration)
    except (ConfigException, OSError):
        raise
    except Exception as error:  # the library lets its parser's errors through, and KeyErrors
        raise ConfigException(f"not a kubeconfig: {error}") from None
    namespace = (named.get("context") or {}).get("namespace")
    return Access(configuration, f"context {named['name']}", namespace or "default")


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
        return (
            f"no kubeconfig: {where} {files}, and there is no such file. Get one from whoever runs "
            "the cluster, or by your provider's command, and name it by KUBECONFIG."
        )
    fix = "`kubectl config get-contexts` shows what is there"
    named = "; kubernetes.context of the profile chooses one" if context else ""
    return f"{files}: {' '.join(reason.split()).rstrip('.')}. {fix}{named}."
