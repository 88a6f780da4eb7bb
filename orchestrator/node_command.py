"""How a pod starts node.py: the command, its arguments and variables, and the node's number."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from orchestrator.node_network import network_arguments
from orchestrator.plan import LaunchPlan

CONFIG_FOLDER = "/orchestrate"
# Of kubeflow.org/v1 PyTorchJob, which wants a port of this name; the others take the same number.
PORT, PORT_NAMES = 23456, {"pytorchjob": "pytorchjob-port"}
# On the nodes' own network runs share the ports: below those of Services, 30000 to 32767
# (kubernetes.io, "Service", type NodePort).
HOST_PORTS = range(20000, 30000)
REPEATABLE_FROM = 128  # codes that all kinds start again; PyTorchJob's ExitCode draws this line
JOIN_GRACE_S = 120  # for the pods of a run to start, which may have an image to fetch
# The image's file system is read-only and its user may have no entry in passwd.
OWN_VARIABLES = {"HOME": "/tmp", "USER": "orchestrate"}


class Rank(NamedTuple):
    """How a node knows its number.

    Args:
        field: the field of its pod that says it; None for node 0, which needs none.
        offset: what is added to it.
    """

    field: str | None
    offset: int = 0


# The field of a pod that has the uid of the object that was submitted, which a new start does not
# change: JobSet documentation, "JobSet labels"; kubernetes.io, "Well-Known Labels". A pod of a
# PyTorchJob has none.
JOBSET_UID = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
SUBMISSIONS = {
    "job": "metadata.labels['batch.kubernetes.io/controller-uid']",
    "jobset": JOBSET_UID,
    "trainjob": JOBSET_UID,
}


class Role(NamedTuple):
    """A kind of pods of a PyTorchJob."""

    name: str
    replicas: int
    rank: Rank


INDEX = Rank("metadata.annotations['batch.kubernetes.io/job-completion-index']")
REPLICA = "metadata.labels['training.kubeflow.org/replica-index']"


def port(plan: LaunchPlan) -> int:
    """Return where node 0 listens; on the nodes' own network one that other runs hardly have."""
    if not plan.kubernetes.host_network:
        return PORT
    return HOST_PORTS[zlib.crc32(plan.name.encode()) % len(HOST_PORTS)]


def process(plan: LaunchPlan, content_hash: str) -> dict[str, Any]:
    """Return what the container runs, with which variables: a part of the templates' variables."""
    kubernetes = plan.kubernetes
    command = ["orchestrate-node"]
    if kubernetes.launcher_from == "config-map":
        command = [kubernetes.python, f"{CONFIG_FOLDER}/node.py"]
    variables = {**OWN_VARIABLES, **dict(plan.env)}
    # A secret holds against what the launcher sets by itself: a name may be there once only.
    plain = variables.keys() - kubernetes.secret_env.keys()
    return {
        "image": kubernetes.image_name,
        "command": [kept(word) for word in command],
        "submission": SUBMISSIONS.get(plan.target),
        "arguments": lambda rank: arguments(plan, rank, content_hash),
        "variables": [(name, kept(variables[name])) for name in sorted(plain)],
        "secret_variables": sorted(kubernetes.secret_env.items()),
    }


def kept(text: str) -> str:
    """Return what the kubelet turns into `text`: to it `$(NAME)` is a variable's value, and `$$`
    one dollar (Kubernetes API reference, Container: command, args; EnvVar: value)."""
    return text.replace("$", "$$")


def arguments(plan: LaunchPlan, rank: Rank, content_hash: str) -> list[str]:
    """Return the arguments of node.py in a pod.

    Args:
        rank: how the node knows its number.
        content_hash: of everything rendered; a part of the attempt's id.
    """
    run_dir = f"{plan.runs_root.rstrip('/')}/{plan.name}"
    words = [
        *("--run-dir", kept(run_dir), "--make-run-dir"),
        *("--workdir", kept(plan.kubernetes.workdir)),
        *_nodes(plan, rank),
        *map(kept, network_arguments(plan)),
        *("--head", head(plan), "--address", "$(ORCHESTRATE_POD_IP)"),
        *("--port", port(plan), "--id", f"{plan.name}-{content_hash[:8]}"),
        *("--start-timeout-s", plan.start_timeout_s),
        *("--shutdown-timeout-s", plan.shutdown_timeout_s),
        *("--echo", "--repeat-codes-from", REPEATABLE_FROM),
        *_budgets(plan),
        *(("--submission", "$(ORCHESTRATE_SUBMISSION)") if plan.target in SUBMISSIONS else ()),
        *("--entry", "trainer.entry", "--", "--config", f"{CONFIG_FOLDER}/trainer.json"),
    ]
    return [str(word) for word in words]


def head(plan: LaunchPlan) -> str:
    """Return the name by which the other nodes meet node 0."""
    if plan.target == "job":
        return f"{plan.name}-0.{plan.name}"
    if plan.target == "pytorchjob":
        return f"{plan.name}-{'worker' if plan.is_elastic else 'master'}-0"
    return f"{plan.name}-node-0-0.{plan.name}"  # a TrainJob makes a JobSet of its own name


def roles(plan: LaunchPlan) -> list[Role]:
    """Return the kinds of pods of a PyTorchJob."""
    if plan.is_elastic:
        return [Role("Worker", plan.num_nodes, Rank(REPLICA))]
    master = Role("Master", 1, Rank(None))
    if plan.num_nodes == 1:
        return [master]
    return [master, Role("Worker", plan.num_nodes - 1, Rank(REPLICA, offset=1))]


def _nodes(plan: LaunchPlan, rank: Rank) -> list[object]:
    words: list[object] = ["--nnodes", plan.num_nodes]
    if plan.is_elastic:
        words += ["--sizes", ",".join(map(str, plan.node_sizes))]
        words += ["--join-grace-s", min(JOIN_GRACE_S, plan.start_timeout_s)]
    words += ["--node-rank-from", "ORCHESTRATE_NODE_RANK"]
    if rank.offset:
        words += ["--node-rank-offset", rank.offset]
    words += ["--nproc-per-node", plan.ranks_per_node]
    if plan.gpus_per_node:
        words += ["--gpus-per-node", plan.gpus_per_node]
    return words


def _budgets(plan: LaunchPlan) -> list[object]:
    words: list[object] = ["--failures", plan.failures, "--requeues", plan.requeues]
    if plan.deadline_s is not None:
        words += ["--deadline-s", plan.deadline_s]
    if plan.time_limit_s is not None:
        words += ["--time-limit-s", plan.time_limit_s]
    return words
