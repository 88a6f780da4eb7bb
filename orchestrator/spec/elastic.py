"""Which numbers of nodes an attempt of a job with a range of nodes may have.

The global batch (micro x accumulation x data ranks) is the same with each of them: fewer nodes make
more micro-batches. And the strategy's groups fit into each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.strategies import parallelism_problems

if TYPE_CHECKING:
    from orchestrator.spec.cluster import NodeRange
    from orchestrator.spec.job import JobSpec

NODES: KeyPath = ("resources", "nodes")
MOST_TOLD = 3  # sizes of which a message says why they do not go
MOST_TRIED = 20  # sizes for which another accumulation is looked for


def node_sizes(spec: JobSpec) -> tuple[int, ...]:
    """Numbers of nodes with which an attempt may run, the smallest first; the last is the most."""
    nodes = spec.resources.nodes
    if isinstance(nodes, int):
        return (nodes,)
    fewer = (n for n in range(nodes.min, nodes.max) if not _obstacle(spec, n))
    return (*fewer, nodes.max)


def elastic_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with a range of nodes, with paths from the root."""
    nodes = spec.resources.nodes
    if isinstance(nodes, int):
        return
    if nodes.min > nodes.max:
        yield Problem(
            (*NODES, "min"),
            f"{nodes.min} is above max, which is {nodes.max}",
            f"write min: {nodes.max} and max: {nodes.min}",
            involves=((*NODES, "max"),),
        )
    elif nodes.min == nodes.max:
        yield Problem(
            (*NODES, "min"),
            f"{nodes.min} is max too, and a range has more than one number",
            f"write nodes: {nodes.max}",
            involves=((*NODES, "max"),),
        )
    # What is wrong with the most nodes is said elsewhere, and may be why no other number goes.
    elif not any(parallelism_problems(spec)) and len(node_sizes(spec)) == 1:
        yield _one_size_alone(spec, nodes)


def _one_size_alone(spec: JobSpec, nodes: NodeRange) -> Problem:
    fewer = range(nodes.max - 1, nodes.min - 1, -1)
    told = [f"{_nodes(n)}: {_obstacle(spec, n)}" for n in fewer[:MOST_TOLD]]
    more = f"; and {len(fewer) - MOST_TOLD} more" if len(fewer) > MOST_TOLD else ""
    other = _other_batch(spec, nodes)
    return Problem(
        (*NODES, "min"),
        f"of {nodes.min} to {nodes.max} nodes only {nodes.max} can run this job with its global "
        f"batch ({'; '.join(told)}{more})",
        f"write nodes: {nodes.max}{', or ' if other else ''}{other}",
        involves=((*NODES, "max"), ("train", "batch"), ("parallelism",)),
    )


def _obstacle(spec: JobSpec, nodes: int, more: int = 1) -> str:
    """Return why an attempt cannot have this number of nodes, "" if it can.

    Args:
        more: how many times the accumulation of the job it would have.
    """
    resources, batch = spec.resources, spec.train.batch
    accumulation = more * batch.accumulation
    passes = accumulation * resources.max_nodes
    if passes % nodes:
        return f"it does not divide accumulation {accumulation} x {resources.max_nodes} nodes"
    problem = next(parallelism_problems(_at_size(spec, nodes, passes // nodes)), None)
    return problem.message if problem else ""


def _at_size(spec: JobSpec, nodes: int, accumulation: int) -> JobSpec:
    """Return the job as an attempt with this number of nodes runs it."""
    resources = spec.resources.model_copy(update={"nodes": nodes})
    batch = spec.train.batch.model_copy(update={"accumulation": accumulation})
    train = spec.train.model_copy(update={"batch": batch})
    parallelism, per_node = spec.parallelism, resources.num_ranks_per_node
    if parallelism.group(per_node) == nodes * per_node // parallelism.tensor:
        # A single group is left, with no other to be a copy: the trainer does the same.
        fsdp = parallelism.fsdp.model_copy(update={"across_nodes": False})
        full: dict[str, object] = {"strategy": "full_shard", "shard_group": None, "fsdp": fsdp}
        parallelism = parallelism.model_copy(update=full)
    parts: dict[str, object] = {"resources": resources, "train": train, "parallelism": parallelism}
    return spec.model_copy(update=parts)


def _other_batch(spec: JobSpec, nodes: NodeRange) -> str:
    """Return advice to take another accumulation, so that a smaller number of nodes goes too."""
    batch = spec.train.batch
    passes = batch.accumulation * nodes.max
    needed = sorted((n // math.gcd(n, passes), -n) for n in range(nodes.min, nodes.max))
    for more, number in needed[:MOST_TRIED]:
        if more > 1 and not _obstacle(spec, -number, more):
            keys = f"accumulation: {more * batch.accumulation}"
            if batch.micro % more == 0:  # the same global batch
                keys = f"micro: {batch.micro // more}, {keys}"
            return f"train.batch: {{{keys}}}, with which {_nodes(-number)} can run it too"
    return ""


def _nodes(number: int) -> str:
    return f"{number} node" + "s" * (number > 1)
