"""The sizes of the mesh: replicas x shard group x tensor group must be the ranks of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec

STRATEGY: KeyPath = ("parallelism", "strategy")
GROUP: KeyPath = ("parallelism", "shard_group")
TENSOR: KeyPath = ("parallelism", "tensor")
RANKS: tuple[KeyPath, ...] = (
    ("resources", "nodes"),
    ("resources", "ranks_per_node"),
    ("resources", "gpus_per_node"),
)
SHARDING = "full_shard, shard_grad_op or hybrid_shard"


def mesh_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with the sizes of the groups, paths from the root."""
    if spec.parallelism.tensor > 1:
        yield from _tensor_problems(spec)
    if spec.parallelism.strategy == "dp":
        yield from _dp_problems(spec)
    yield from _reshard_problems(spec)
    # A node that tensor does not divide has no default group; that is said above.
    if spec.resources.num_ranks_per_node % spec.parallelism.tensor == 0:
        yield from _group_problems(spec)


def _tensor_problems(spec: JobSpec) -> Iterator[Problem]:
    tensor, sizes = spec.parallelism.tensor, spec.train.model.sizes
    per_node = spec.resources.num_ranks_per_node
    if not spec.parallelism.shards:
        yield Problem(
            TENSOR,
            f"{tensor} with {spec.parallelism.strategy}: tensor parallelism goes with "
            f"{SHARDING} only",
            "write strategy: full_shard, or remove tensor",
            involves=(STRATEGY,),
        )
    elif spec.parallelism.fsdp.version == 1:
        yield Problem(
            TENSOR,
            f"{tensor} with fsdp.version 1: only fully_shard (version 2) goes with a tensor group",
            "remove fsdp.version, or tensor",
            involves=(STRATEGY, ("parallelism", "fsdp", "version")),
        )
    elif sizes is None:
        yield Problem(
            TENSOR,
            f"{tensor} with a model of yours: only the bundled GPT's blocks can be split",
            "remove tensor",
            involves=(("train", "model"),),
        )
    elif per_node % tensor:
        yield Problem(
            TENSOR,
            f"{tensor} does not divide the ranks of a node ({per_node}): a group would cross "
            "nodes, and its ranks wait for one another in each block",
            _one_of(_divisors(per_node)[1:], "tensor") or "remove tensor",
            involves=RANKS,
        )
    elif sizes.heads % tensor:
        yield Problem(
            TENSOR,
            f"{tensor} does not divide the model's {sizes.heads} attention heads",
            _one_of([n for n in _divisors(sizes.heads)[1:] if per_node % n == 0], "tensor")
            or "remove tensor, or change heads",
            involves=(("train", "model"),),
        )
    if spec.train.model.dropout:
        yield Problem(
            ("train", "model", "dropout"),
            f"{spec.train.model.dropout:g} with parallelism.tensor {tensor}: the ranks of a tensor "
            "group would drop different activations",
            "write dropout: 0.0, or remove tensor",
            involves=(TENSOR,),
        )


def _dp_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.num_ranks != 1:
        yield Problem(
            STRATEGY,
            f"dp is one process for all GPUs of one node, and this job has {spec.num_ranks} ranks",
            "write strategy: ddp, or resources.nodes: 1 and ranks_per_node: 1",
            involves=RANKS,
        )
    if spec.train.compile:
        yield Problem(
            ("train", "compile"),
            "true with dp: DataParallel copies the model in each step, compiled code and all",
            "write compile: false, or strategy: ddp",
            involves=(STRATEGY,),
        )
    gpus, micro = spec.resources.gpus_per_node or 1, spec.train.batch.micro
    if micro % gpus:
        yield Problem(
            ("train", "batch", "micro"),
            f"{micro} sequences cannot be split evenly over the {gpus} GPUs of dp",
            f"take a multiple of {gpus}, or write strategy: ddp",
            involves=(STRATEGY, RANKS[-1]),
        )
    if spec.train.data.ignore_token is not None:
        yield Problem(
            ("train", "data", "ignore_token"),
            "not with dp: a GPU with few counted tokens would weigh as much as one with many",
            "remove it, or write strategy: ddp",
            "key",
            involves=(STRATEGY,),
        )


def _group_problems(spec: JobSpec) -> Iterator[Problem]:
    parallelism = spec.parallelism
    if parallelism.strategy != "hybrid_shard":
        for _ in parallelism.given("shard_group"):
            yield Problem(
                GROUP,
                f"goes with hybrid_shard only, not with {parallelism.strategy}",
                "remove it, or write strategy: hybrid_shard",
                "key",
                involves=(STRATEGY,),
            )
    elif parallelism.shard_group is None:
        yield from _default_group_problems(spec)
    else:
        yield from _given_group_problems(spec, parallelism.shard_group)


def _default_group_problems(spec: JobSpec) -> Iterator[Problem]:
    """The default, a group for each node, can have no second group or a single rank."""
    data_ranks = spec.num_ranks // spec.parallelism.tensor
    group = spec.resources.num_ranks_per_node // spec.parallelism.tensor
    smaller = _divisors(group)[1:-1]
    advice = f", or a group that leaves copies: shard_group: {smaller[-1]}" if smaller else ""
    if group == data_ranks:
        yield Problem(
            STRATEGY,
            "the default group of hybrid_shard is a node, and the one node here has all ranks that "
            f"share the model ({data_ranks}): no group is left to be a copy",
            f"write strategy: full_shard{advice}",
            involves=(*RANKS, GROUP, TENSOR),
        )
    elif group == 1:
        yield Problem(
            STRATEGY,
            "the default group of hybrid_shard is a node, and a node here has one rank to share "
            f"the model (ranks of a node: {spec.resources.num_ranks_per_node}, tensor: "
            f"{spec.parallelism.tensor})",
            "write strategy: full_shard, or give shard_group with fsdp.across_nodes: true",
            involves=(*RANKS, GROUP, TENSOR),
        )


def _given_group_problems(spec: JobSpec, group: int) -> Iterator[Problem]:
    tensor, per_node = spec.parallelism.tensor, spec.resources.num_ranks_per_node
    data_ranks = spec.num_ranks // tensor
    involved = (STRATEGY, TENSOR, *RANKS)
    of_ranks = f"{data_ranks} ranks" + (f" ({spec.num_ranks} / tensor {tensor})" * (tensor > 1))
    if data_ranks % group or group == data_ranks:
        reason = "is all" if group == data_ranks else "does not divide the"
        copy = ": no group is left to be a copy" if group == data_ranks else ""
        yield Problem(
            GROUP,
            f"{group} {reason} {of_ranks}{copy}",
            _one_of(_divisors(data_ranks)[1:-1], "shard_group") or "write strategy: full_shard",
            involves=involved,
        )
    elif per_node % (group * tensor) and not spec.parallelism.fsdp.across_nodes:
        size = f"{group} ranks" if tensor == 1 else f"{group} x tensor {tensor} ranks"
        inside = [n for n in _divisors(per_node // tensor)[1:] if data_ranks % n == 0]
        advice = _one_of([n for n in inside if n < data_ranks], "shard_group")
        yield Problem(
            GROUP,
            f"a group of {size} crosses nodes of {per_node}: all its traffic would go over the "
            "network between them",
            f"{advice}{', or ' if advice else ''}allow it with fsdp.across_nodes: true",
            involves=(*involved, ("parallelism", "fsdp", "across_nodes")),
        )


def _reshard_problems(spec: JobSpec) -> Iterator[Problem]:
    """A number of ranks must lie between one rank and the shard group, and divide it."""
    wanted, parallelism = spec.parallelism.fsdp.reshard_after_forward, spec.parallelism
    if isinstance(wanted, bool) or wanted is None or not parallelism.shards:
        return
    per_node = spec.resources.num_ranks_per_node
    group = parallelism.group(per_node) or spec.num_ranks // parallelism.tensor
    allowed = _divisors(group)[1:-1]
    if wanted not in allowed:
        yield Problem(
            ("parallelism", "fsdp", "reshard_after_forward"),
            f"{wanted} is no divisor between 1 and the {group} ranks that share the model",
            _one_of(allowed, "reshard_after_forward") or "write true or false",
            involves=(STRATEGY, GROUP, TENSOR, *RANKS),
        )


def _divisors(number: int) -> list[int]:
    """Return all divisors, smallest first; the numbers here have at most eight digits."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _one_of(allowed: list[int], key: str) -> str:
    """Return advice to take one of some values; empty without any."""
    if not allowed:
        return ""
    return f"take {key}: {' or '.join(map(str, allowed[-4:]))}"
