"""What node.py is told of the network between the nodes."""

from __future__ import annotations

from orchestrator.plan import LaunchPlan


def network_arguments(plan: LaunchPlan) -> list[str]:
    """Return arguments of trainer/node.py, as they are before any quoting.

    On one machine the nodes are simulated: their addresses are given, and no network is looked at.
    """
    network = plan.network
    words = ["--backend", network.backend]
    if network.script is not None:
        words += ["--source", network.script]
    for folder in network.library_path:
        words += ["--library-path", folder]
    if plan.target != "local":
        words += _place(plan)
    items = _preflight(plan)
    if items:
        words += ["--preflight", ",".join(items)]
    if network.shared_gpus:
        words.append("--shared-gpus")
    return words


def _place(plan: LaunchPlan) -> list[str]:
    """What says which of a node's addresses the ranks use."""
    network, words = plan.network, list[str]()
    if network.interface is not None:
        words += ["--interface", network.interface]
    if network.host_suffix is not None and plan.target == "slurm":
        words.append(f"--host-suffix={network.host_suffix}")  # it may begin with a dash
    if network.address_family != "auto":
        words += ["--address-family", network.address_family]
    return words


def _preflight(plan: LaunchPlan) -> list[str]:
    """What each node looks at before the run."""
    network, items = plan.network, list[str]()
    is_between_nodes = plan.num_nodes > 1 and plan.target != "local"
    if is_between_nodes and network.pods is not None and network.pods.rdma:
        items.append("memlock")
    if "nccl" in network.backend:
        items += ["mig", "nccl-conf"]
    if is_between_nodes:
        items.append("routes")
    return items
