"""Which communication hook of DistributedDataParallel goes with what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.mesh import STRATEGY

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec


def hook_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong with `parallelism.ddp.hook` and its options, paths from the root."""
    ddp, path = spec.parallelism.ddp, ("parallelism", "ddp")
    backend = spec.network.backend
    on_gloo = backend == "gloo" or (backend == "auto" and not spec.resources.gpus_per_node)
    if ddp.hook == "bf16" and on_gloo:
        yield Problem(
            (*path, "hook"),
            "bf16 fails on gloo, which the job uses; torch's hook needs nccl",
            "write hook: fp16 or powersgd, or train on GPUs with nccl",
            involves=(("network", "backend"), ("resources", "gpus_per_node"), STRATEGY),
        )
    if ddp.hook != "powersgd" and ddp.given("powersgd_rank"):
        yield Problem(
            (*path, "powersgd_rank"),
            f"goes with hook: powersgd only, not with hook: {ddp.hook}",
            "remove it, or write hook: powersgd",
            "key",
            involves=((*path, "hook"), STRATEGY),
        )
    if ddp.hook == "powersgd":
        yield from _powersgd_problems(spec)


def _powersgd_problems(spec: JobSpec) -> Iterator[Problem]:
    path: KeyPath = ("parallelism", "ddp", "hook")
    fp16 = spec.parallelism.precision == "fp16"
    if fp16 or spec.train.nonfinite.policy == "skip":
        what = "precision fp16" if fp16 else "train.nonfinite.policy skip"
        yield Problem(
            path,
            f"powersgd with {what}: a step that is left out would stay in what PowerSGD holds back "
            "for the next one, and no later step would be a number",
            "write hook: none, or "
            + ("precision: bf16" if fp16 else "train.nonfinite.policy: stop"),
            involves=(("parallelism", "precision"), ("train", "nonfinite", "policy"), STRATEGY),
        )
    if spec.parallelism.gradient_sync == "each":
        yield Problem(
            ("parallelism", "gradient_sync"),
            "each with ddp.hook powersgd: it begins after a number of sums, which a resumed run "
            "knows only if each step has one",
            "write gradient_sync: last, or hook: none",
            involves=(path, STRATEGY),
        )
