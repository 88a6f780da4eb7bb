"""A range of nodes on a real Slurm: each start of the job has the nodes that Slurm gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.backends.base import State
from slurm.cluster import Cluster
from slurm.probing import Probe, seen


@pytest.fixture
def two_nodes(site: Cluster) -> Iterator[Cluster]:
    """The cluster with its third node drained."""
    site.client("scontrol", "update", "NodeName=node3", "State=DRAIN", "Reason=test")
    yield site
    if site.node_state("node3").startswith("dr"):
        give_back(site)


def give_back(site: Cluster) -> None:
    site.client("scontrol", "update", "NodeName=node3", "State=RESUME")
    site.wait_for_node_up("node3")


def job(accumulation: int, launcher: str = "torchrun") -> dict[str, Any]:
    """One to three nodes; with accumulation 1 they are 1 or 3, with 2 also 2."""
    return {
        "resources": {"nodes": {"min": 1, "max": 3}, "ranks_per_node": 2},
        "timeouts": {"start": "60s", "shutdown": "60s"},
        "launcher": launcher,
        "train": {
            "model": {"preset": "nano"}, "data": {"synthetic": {"samples": 64}}, "steps": 1,
            "batch": {"accumulation": accumulation},
        },
    }  # fmt: skip


def hosts(ranks: list[dict[str, Any]]) -> list[str]:
    assert {rank["environ"]["WORLD_SIZE"] for rank in ranks} == {str(len(ranks))}
    return [rank["host"] for rank in ranks]


def test_the_next_start_has_the_node_that_is_back(probe: Probe, two_nodes: Cluster) -> None:
    handle = probe.submit("leave=2", job(accumulation=2))
    probe.wait_ready(handle, 1, num_ranks=4)
    give_back(two_nodes)
    two_nodes.client("scontrol", "requeue", handle.ids["job"])
    probe.start_again(handle)
    probe.ends(handle, State.DONE)
    assert hosts(seen(handle, 2)) == ["node1", "node1", "node2", "node2", "node3", "node3"]


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_node_too_many_stays_idle(probe: Probe, launcher: str) -> None:
    handle = probe.submit("done", job(accumulation=1, launcher=launcher))
    probe.ends(handle, State.DONE)
    assert hosts(seen(handle)) == ["node1", "node1"]
    assert probe.cluster.scontrol(handle.ids["job"])["NodeList"] == "node[1-2]"
