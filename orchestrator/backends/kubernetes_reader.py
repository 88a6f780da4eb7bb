"""A small pod that mounts a run's volumes, for looking into the run folder when the run is over.

It has the run's image, user and volumes, and nothing of its GPUs; it sleeps, and is deleted when
the command ends. One that is left behind ends by itself, and goes with the run's object.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_kinds import (
    EVENT,
    MANAGED_BY,
    MANAGER,
    POD,
    RUNTIME,
    Object,
    Target,
)
from orchestrator.backends.kubernetes_pods import Phase, pod_facts
from orchestrator.errors import BackendError

READER_LABEL = "orchestrate.dev/reader"  # not that of the run: no pod of an attempt
START_TIMEOUT_S = 300.0
LIFE_S = 6 * 3600  # a checkpoint of 1 TB at 50 MB/s is hashed in that
POLL_S = 0.5
OF_THE_POD = ("imagePullSecrets", "securityContext", "serviceAccountName", "tolerations", "volumes")
OF_THE_CONTAINER = ("image", "imagePullPolicy", "securityContext", "volumeMounts", "workingDir")
RESOURCES = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}


@contextmanager
def reader_pod(cluster: Cluster, target: Target, run: str) -> Iterator[str]:
    """The name of a running pod with the volumes of a run; the pod is gone afterwards.

    Raises BackendError if there is no object of the run, or if the pod does not start.
    """
    live = cluster.get(target.kind, run)
    name = f"{run}-reader-{secrets.token_hex(2)}"
    cluster.create(_manifest(target, live, _template(cluster, target, live), name))
    try:
        _wait(cluster, target, name)
        yield name
    finally:
        cluster.delete(POD, name, grace_s=0)


def _template(cluster: Cluster, target: Target, live: Object) -> Mapping[str, Any]:
    """The pod template of a run's object."""
    spec = live["spec"]
    if target.name == "trainjob":
        spec = cluster.get(RUNTIME, live["metadata"]["name"])["spec"]["template"]["spec"]
    if target.name in ("trainjob", "jobset"):
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    if target.name == "pytorchjob":
        spec = next(iter(spec["pytorchReplicaSpecs"].values()))
    found: Mapping[str, Any] = spec["template"]["spec"]
    return found


def _manifest(
    target: Target, live: Object, template: Mapping[str, Any], name: str
) -> dict[str, Any]:
    container = next(c for c in template["containers"] if c["name"] == target.container)
    about = live["metadata"]
    owner = {"apiVersion": target.kind.api_version, "kind": target.kind.name,
             "name": about["name"], "uid": about["uid"]}  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                MANAGED_BY: MANAGER,
                READER_LABEL: about["name"],
                "sidecar.istio.io/inject": "false",
            },
            "ownerReferences": [owner],
        },
        "spec": {
            **{key: template[key] for key in OF_THE_POD if key in template},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    **{key: container[key] for key in OF_THE_CONTAINER if key in container},
                    "name": target.container,
                    "command": ["sleep", str(LIFE_S)],
                    "resources": RESOURCES,
                }
            ],
        },
    }


def _wait(cluster: Cluster, target: Target, name: str) -> None:
    """Return when the pod runs. Raises BackendError, with what it waits for, if it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        facts = pod_facts(target, cluster.get(POD, name))
        if facts.phase is Phase.RUNNING:
            return
        if not facts.is_active or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    events = cluster.objects(EVENT, fields=f"involvedObject.name={name}")
    facts = pod_facts(target, cluster.get(POD, name), events)
    raise BackendError(f"{cluster.label}: the pod {name} does not start: {facts.why}")
