"""What does not go together with `launcher: submitit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import Problem

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec

LAUNCHER = ("launcher",)


def launcher_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong, with paths from the root."""
    if spec.launcher != "submitit":
        return
    if spec.resources.time_limit is None:
        yield Problem(
            LAUNCHER,
            "submitit always sets a time limit, 5 minutes where it is given none",
            "add resources.time_limit",
        )
    if not isinstance(spec.resources.nodes, int):
        yield Problem(
            LAUNCHER,
            "submitit writes one number of nodes into its script, and resources.nodes is a range",
            f"write launcher: torchrun, or resources.nodes: {spec.resources.max_nodes}",
            involves=(("resources", "nodes"),),
        )
    if spec.slurm.container is not None:
        yield Problem(
            LAUNCHER,
            "submitit starts its own Python on the nodes, in no container",
            "write launcher: torchrun, or remove slurm.container",
            involves=(("slurm", "container"),),
        )
    if "clusters" in spec.slurm.options:
        yield Problem(
            LAUNCHER,
            "submitit does not tell which of several clusters has taken the job",
            "write launcher: torchrun, or remove slurm.options.clusters",
            involves=(("slurm", "options", "clusters"),),
        )
