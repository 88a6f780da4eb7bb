"""Which options of parallelism go with which strategy, and with one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.hooks import hook_problems
from orchestrator.spec.mesh import SHARDING, STRATEGY, mesh_problems

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.parallelism import Parallelism, Wrap

VERSION: KeyPath = ("parallelism", "fsdp", "version")
CHECKPOINTING: KeyPath = ("parallelism", "activation_checkpointing")


def parallelism_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong between `parallelism` and the rest of the job, paths from the root."""
    if spec.parallelism.strategy == "auto":  # what it becomes is judged
        return
    yield from mesh_problems(spec)
    yield from (p.under(("parallelism",)) for p in _unused_problems(spec.parallelism))
    if spec.parallelism.uses_fsdp:
        yield from _wrap_problems(spec.parallelism.wrap)
        yield from _fsdp_problems(spec.parallelism)
        yield from _sync_problems(spec)
        yield from _backend_problems(spec)
    if spec.parallelism.uses_ddp:
        yield from hook_problems(spec)
    yield from _checkpointing_problems(spec)
    if spec.parallelism.cpu_offload:
        yield from _offload_problems(spec)
    yield from _replica_problems(spec.parallelism)


def _unused_problems(parallelism: Parallelism) -> Iterator[Problem]:
    """Options of a wrapper that the strategy does not use, which would do nothing."""
    strategy, involved = parallelism.strategy, (("strategy",), ("fsdp", "version"))
    for name in parallelism.ddp.given(*type(parallelism.ddp).model_fields):
        if not parallelism.uses_ddp:
            yield Problem(
                ("ddp", name),
                f"an option of DistributedDataParallel, which {_called(parallelism)} does not use",
                "remove it, or write strategy: ddp",
                "key",
                involved,
            )
    for path in _given_of_fsdp(parallelism):
        yield Problem(
            path,
            f"goes with {SHARDING} only, not with {_called(parallelism)}",
            f"remove it, or write {SHARDING}",
            "key",
            involved,
        )
    if parallelism.reductions != "fp32" and not parallelism.uses_fsdp:
        yield Problem(
            ("reductions",),
            f"{strategy} sums gradients in fp32",
            "remove it; ddp.hook makes DDP's gradients smaller on the wire",
            involves=involved,
        )


def _called(parallelism: Parallelism) -> str:
    """Return the strategy as a message names it."""
    if parallelism.strategy == "no_shard":
        return f"no_shard of fsdp.version {parallelism.fsdp.version}"
    return parallelism.strategy


def _given_of_fsdp(parallelism: Parallelism) -> Iterator[KeyPath]:
    """Yield the keys that were given and need a strategy that FSDP runs, which this is not."""
    fsdp, wrap = parallelism.fsdp, parallelism.wrap
    if not parallelism.shards and parallelism.cpu_offload:
        yield ("cpu_offload",)
    if parallelism.strategy != "hybrid_shard" and fsdp.across_nodes:
        yield ("fsdp", "across_nodes")
    if parallelism.uses_fsdp:
        return
    yield from ((name,) for name in parallelism.given("buffers"))
    yield from (("wrap", name) for name in wrap.given(*type(wrap).model_fields))
    for name in fsdp.given(*type(fsdp).model_fields):
        # The version is what no_shard has its meaning from.
        if name != "across_nodes" and (name, parallelism.strategy) != ("version", "no_shard"):
            yield ("fsdp", name)


def _wrap_problems(wrap: Wrap) -> Iterator[Problem]:
    path: KeyPath = ("parallelism", "wrap")
    for name, by in (("classes", "class"), ("min_parameters", "size")):
        if wrap.by != by and wrap.given(name):
            yield Problem(
                (*path, name),
                f"goes with by: {by} only, not with by: {wrap.by}",
                f"remove it, or write by: {by}",
                "key",
                involves=((*path, "by"),),
            )
    if wrap.by == "class" and not wrap.classes:
        yield Problem(
            (*path, "by"),
            "class needs the names of the classes to shard one by one",
            "add classes below wrap, such as `classes: [Block]`",
            involves=((*path, "classes"),),
        )


def _fsdp_problems(parallelism: Parallelism) -> Iterator[Problem]:
    fsdp, involved = parallelism.fsdp, (STRATEGY, VERSION)
    path: KeyPath = ("parallelism", "fsdp", "reshard_after_forward")
    reshard = fsdp.reshard_after_forward
    other = {"full_shard": "shard_grad_op", "shard_grad_op": "full_shard"}
    if reshard is not None and parallelism.strategy == "no_shard":
        yield Problem(path, "nothing is sharded under no_shard", "remove it", "key", involved)
    elif (parallelism.strategy, reshard) == ("full_shard", False) or (
        parallelism.strategy == "shard_grad_op" and reshard
    ):
        yield Problem(
            path,
            f"{str(reshard).lower()} is what {other[parallelism.strategy]} does, and the strategy "
            f"is {parallelism.strategy}",
            f"remove it, or write strategy: {other[parallelism.strategy]}",
            involves=involved,
        )
    elif fsdp.version == 1 and not isinstance(reshard, bool | None):
        yield Problem(
            path,
            "a number of ranks is for fsdp.version 2 only",
            "write true or false, or remove version",
            involves=involved,
        )
    if fsdp.version == 1 and fsdp.deferred_init and fsdp.given("deferred_init"):
        yield Problem(
            ("parallelism", "fsdp", "deferred_init"),
            "true is for fsdp.version 2 only; version 1 builds the whole model on each rank",
            "remove it, or version",
            involves=involved,
        )
    for name in ("prefetch_forward", "prefetch_backward"):
        if fsdp.version == 1 and getattr(fsdp, name):
            yield Problem(
                ("parallelism", "fsdp", name),
                "goes with fsdp.version 2 only; version 1 prefetches in its own way",
                "remove it, or version",
                involves=involved,
            )


def _checkpointing_problems(spec: JobSpec) -> Iterator[Problem]:
    parallelism, model = spec.parallelism, spec.train.model
    every: KeyPath = ("parallelism", "activation_checkpointing_every")
    kind, k = parallelism.activation_checkpointing, parallelism.activation_checkpointing_every
    if kind == "none":
        if parallelism.given("activation_checkpointing_every"):
            yield Problem(
                every,
                "nothing is computed again, so every k-th block means nothing",
                "remove it, or write activation_checkpointing: full or selective",
                "key",
                involves=(CHECKPOINTING,),
            )
        return
    if model.factory is not None:
        yield Problem(
            CHECKPOINTING,
            f"{kind} is for the bundled model's blocks, and train.model is a factory of yours",
            "write none, and call torch.utils.checkpoint inside your model",
            involves=(("train", "model", "factory"),),
        )
    elif model.sizes and k > model.sizes.layers:
        yield Problem(
            every,
            f"{k} is more than the {model.sizes.layers} blocks of the model",
            f"take a number from 1 to {model.sizes.layers}",
            involves=(("train", "model"), CHECKPOINTING),
        )
    if parallelism.uses_ddp:
        yield from _recomputed_pass_problems(parallelism)


def _recomputed_pass_problems(parallelism: Parallelism) -> Iterator[Problem]:
    reasons = {
        "find_unused_parameters": "the recomputed pass would mark a parameter ready twice",
        "broadcast_buffers": "the recomputed pass would see other buffers than the first one did",
    }
    for name, reason in reasons.items():
        if getattr(parallelism.ddp, name):
            yield Problem(
                ("parallelism", "ddp", name),
                f"cannot be true together with activation checkpointing: {reason}",
                f"write {name}: false, or activation_checkpointing: none",
                involves=(CHECKPOINTING,),
            )


def _offload_problems(spec: JobSpec) -> Iterator[Problem]:
    path: KeyPath = ("parallelism", "cpu_offload")
    parallelism, accumulation = spec.parallelism, spec.train.batch.accumulation
    if parallelism.precision == "fp16":
        yield Problem(
            path,
            "not supported together with precision fp16 and its gradient scaler",
            "write precision: bf16, or cpu_offload: false",
            involves=(("parallelism", "precision"),),
        )
    if parallelism.fsdp.version == 2:
        return
    if not spec.resources.gpus_per_node:
        yield Problem(
            path,
            "true without GPUs: fsdp.version 1 fails to offload from a CPU",
            "write cpu_offload: false, or remove fsdp.version",
            involves=(VERSION, ("resources", "gpus_per_node")),
        )
    elif accumulation > 1:
        yield Problem(
            path,
            f"true with batch.accumulation {accumulation}: fsdp.version 1 loses the gradients of "
            "all micro-batches but the last one",
            "remove fsdp.version, or write accumulation: 1",
            involves=(VERSION, ("train", "batch", "accumulation")),
        )


def _sync_problems(spec: JobSpec) -> Iterator[Problem]:
    """Where FSDP1 adds up the micro-batches' gradients as narrow as they come."""
    parallelism, accumulation = spec.parallelism, spec.train.batch.accumulation
    waits = parallelism.gradient_sync == "last" and accumulation > 1
    if parallelism.fsdp.version == 1 and waits and parallelism.precision != "fp32":
        yield Problem(
            ("parallelism", "gradient_sync"),
            f"last with fsdp.version 1, precision {parallelism.precision} and batch.accumulation "
            f"{accumulation}: torch's class would add up gradients in {parallelism.precision}",
            "write gradient_sync: each, or remove fsdp.version",
            involves=(STRATEGY, VERSION, ("parallelism", "precision")),
        )


def _backend_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.network.backend == "gloo" and spec.resources.gpus_per_node:
        yield Problem(
            ("network", "backend"),
            f"gloo with GPUs and {_called(spec.parallelism)}: sharding on GPUs was never tried on "
            "gloo",
            "write backend: nccl, or remove it",
            involves=(("resources", "gpus_per_node"), STRATEGY, VERSION),
        )


def _replica_problems(parallelism: Parallelism) -> Iterator[Problem]:
    if parallelism.check_replicas_every is None:
        return
    if parallelism.strategy in ("full_shard", "shard_grad_op", "dp"):
        yield Problem(
            ("parallelism", "check_replicas_every"),
            f"{parallelism.strategy} keeps one copy of the parameters, so there is nothing to "
            "compare it with",
            "remove it",
            "key",
            involves=(STRATEGY,),
        )
