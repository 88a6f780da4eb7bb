"""The settings that advice compares, and which of two is the simpler one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.estimate.lines import KEYS, crosses_nodes

if TYPE_CHECKING:
    from orchestrator.estimate.setting import Setting

# The simpler first: less that can go wrong, and less to be understood.
STRATEGIES = ("ddp", "shard_grad_op", "full_shard", "hybrid_shard")
RECOMPUTED = ("none", "selective", "full")


def shapes(setting: Setting, fixed: frozenset[str]) -> Iterator[Setting]:
    """Yield each strategy with each size of shard groups, and each amount of recomputation.

    Args:
        fixed: names of what stays as it is (see lines.KEYS).
    """
    for base in _strategies(setting, fixed):
        for kind in [setting.checkpointing] if "checkpointing" in fixed else RECOMPUTED:
            every = setting.checkpointing_every if kind != "none" else 1
            yield replace(base, checkpointing=kind, checkpointing_every=every)


def _strategies(setting: Setting, fixed: frozenset[str]) -> Iterator[Setting]:
    if "strategy" in fixed and setting.strategy != "hybrid_shard":
        yield setting
        return
    ranks = setting.num_ranks // setting.tensor
    groups = [n for n in divisors(ranks) if 1 < n < ranks]
    if "shard_group" in fixed:
        groups = [setting.shard_group] if setting.shard_group in groups else []
    if "strategy" not in fixed and "shard_group" not in fixed:
        plain = replace(setting, shard_group=None)
        if setting.tensor == 1:
            yield replace(plain, strategy="ddp", reductions="fp32", cpu_offload=False)
        if ranks > 1 or setting.tensor > 1:
            yield replace(plain, strategy="shard_grad_op")
        yield replace(plain, strategy="full_shard")
    for group in groups:
        yield replace(setting, strategy="hybrid_shard", shard_group=group)


def batches(setting: Setting, fixed: frozenset[str]) -> list[Setting]:
    """Return the same global batch in micro-batches of all sizes, the largest first; where that
    matters, once with gradients summed at the end of a step and once with each micro-batch."""
    return list(each_batch(setting, fixed))


def each_batch(setting: Setting, fixed: frozenset[str]) -> Iterator[Setting]:
    """Yield what batches() returns, one by one: often the first is enough."""
    product = setting.micro * setting.accumulation
    for n in [setting.micro] if "micro" in fixed else divisors(product)[::-1]:
        yield from _syncs(replace(setting, micro=n, accumulation=product // n), fixed)


def _syncs(setting: Setting, fixed: frozenset[str]) -> list[Setting]:
    if "gradient_sync" in fixed:
        return [setting]
    last = replace(setting, gradient_sync="last")
    if not setting.shards or setting.accumulation == 1:
        return [last]
    return [last, replace(setting, gradient_sync="each")]


def complexity(setting: Setting, wanted: Setting) -> tuple[int, ...]:
    """Return what is compared where two settings are equally fast: the smaller is the simpler, and
    of two as simple ones that which is nearer to `wanted`, the job as it is written."""
    known = setting.strategy in STRATEGIES
    return (
        setting.cpu_offload,
        STRATEGIES.index(setting.strategy) if known else len(STRATEGIES),
        crosses_nodes(setting),
        _recomputed(setting),
        setting.gradient_sync == "each",
        sum(getattr(setting, name) != getattr(wanted, name) for name in KEYS),
        -setting.micro,
        -(setting.shard_group or 0),
    )


def _recomputed(setting: Setting) -> int:
    return RECOMPUTED.index(setting.checkpointing)


def divisors(number: int) -> list[int]:
    """Return all divisors, the smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
