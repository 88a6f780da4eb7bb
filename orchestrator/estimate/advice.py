"""All strategies compared: the fastest that fits, the next best, and what would make one fit.

Precision, the global batch and the number of nodes stay as they are; a remedy says what others
would do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.estimate.lines import KEYS
from orchestrator.estimate.reason import (
    gib,
    reason_for,
    reason_unknown,
    reason_without,
    shape_words,
)
from orchestrator.estimate.search import Question, best_of, fitting, form, least_of
from orchestrator.estimate.variants import batches, divisors
from orchestrator.estimate.whole import FITS

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware

# How many times the nodes a remedy may name.
MOST_TIMES_NODES = 64
# What a job file may have written that can be left open without another training coming out of it.
OPEN = frozenset(
    {"strategy", "shard_group", "micro", "cpu_offload", "checkpointing", "gradient_sync"}
)


@dataclass(frozen=True)
class Remedy:
    """What would make the job fit that advice may not change by itself.

    Args:
        words: what to change, in words.
        estimate: the plan with it; None where the remedy is another card.
    """

    words: str
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Advice:
    """What to take, and why.

    Args:
        best: the fastest that fits, or the simplest of those as fast; None where nothing fits, or
            where the card's memory is not known.
        runner_up: the best of another strategy or size of groups.
        least: where nothing fits, what needs least memory.
        remedies: where nothing fits, what would help, each with its figures.
        reason: one to three plain sentences.
    """

    best: Estimate | None
    runner_up: Estimate | None
    least: Estimate | None
    remedies: tuple[Remedy, ...]
    reason: str


def advise(question: Question) -> Advice:
    """Return the fastest setting that fits and its reason, or what would make one fit."""
    question = _rank_for_each_gpu(question)
    if question.hardware.memory_bytes is None:
        return Advice(None, None, None, (), reason_unknown(question.hardware))
    found = fitting(question)
    if not found:
        least = least_of(question)
        remedies = tuple(_remedies(question, least))
        return Advice(None, None, least, remedies, reason_without(least, question.hardware))
    wanted = question.setting
    best = best_of(found, wanted)
    others = [e for e in found if form(e.setting) != form(best.setting)]
    runner_up = best_of(others, wanted) if others else None
    words = reason_for(best, found, _whole_copy(question), question.hardware)
    return Advice(best, runner_up, None, (), words)


def _rank_for_each_gpu(question: Question) -> Question:
    """Return the question with a process for each of dp's GPUs, as all that is advised has."""
    setting = question.setting
    gpus = setting.replicas
    if gpus == 1 or "strategy" in question.fixed:
        return question
    micro = max(1, setting.micro // gpus)
    spread = replace(setting, ranks_per_node=gpus, micro=micro, replicas=1)
    host_bytes = question.host_bytes and question.host_bytes // gpus
    return replace(question, setting=spread, host_bytes=host_bytes)


def _whole_copy(question: Question) -> Estimate | None:
    """The least that ddp needs: a whole copy on each rank."""
    setting = question.setting
    if setting.tensor > 1:
        return None
    ddp = replace(setting, strategy="ddp", shard_group=None, reductions="fp32", cpu_offload=False)
    fixed = question.fixed - {"strategy", "shard_group", "cpu_offload"} | {"checkpointing"}
    each = batches(ddp, fixed)
    return question.estimate(min((each[0], *each[-2:]), key=question.size_bytes))


def _remedies(question: Question, least: Estimate | None) -> Iterator[Remedy]:
    """Yield what would help, the smallest change first."""
    free = question.fixed & OPEN
    for names in ({"cpu_offload"}, free) if len(free) > 1 else (free,):
        if names & free:
            keys = ", ".join(KEYS[name] for name in sorted(names))
            yield from _remedy(replace(question, fixed=question.fixed - names), f"without {keys}")
    yield from _more_nodes(question)
    yield from _shorter(question)
    if least is not None:
        yield Remedy(_more_memory(question, least))


def _remedy(question: Question, words: str) -> Iterator[Remedy]:
    found = fitting(question)
    if found:
        best = best_of(found, question.setting)
        yield Remedy(f"{words}: {shape_words(best.setting)}", best)


def _more_nodes(question: Question) -> Iterator[Remedy]:
    """The smallest multiple of the nodes that helps with the global batch of now; without one, the
    smallest power of two, with a batch as small as it can be."""
    setting = question.setting
    product = setting.micro * setting.accumulation
    kept = [times for times in divisors(product) if 1 < times <= MOST_TIMES_NODES]
    powers = [2**n for n in range(1, MOST_TIMES_NODES.bit_length()) if product % 2**n]
    free = question.fixed - {"micro", "accumulation"}
    for times in (*kept, *powers):
        fewer, words = max(1, product // times), f"resources.nodes: {setting.num_nodes * times}"
        if times in powers:
            fewer = 1
            words += f", with {times / product:.3g} times the global batch"
        wanted = replace(setting, num_nodes=setting.num_nodes * times, micro=1, accumulation=fewer)
        more = replace(question, setting=wanted, node_sizes=(), fixed=free)
        found = list(_remedy(more, words))
        if found:
            yield from found
            return


def _shorter(question: Question) -> Iterator[Remedy]:
    """Half the context, a quarter and so on, until something fits."""
    context = question.setting.context
    for times in divisors(context):
        if times == 1 or context // times < 128 or times & (times - 1):
            continue
        outline = question.outline_at(context // times)
        if outline is None:
            return
        wanted = replace(question.setting, context=context // times)
        shorter = replace(question, setting=wanted, outline=outline)
        found = list(_remedy(shorter, f"context {context // times}"))
        if found:
            yield from found
            return


def _more_memory(question: Question, least: Estimate) -> str:
    needed = least.memory.total / FITS
    if not question.on_cpu:
        return _larger_card(question.hardware, needed)
    ranks, host_bytes = question.setting.ranks_per_node, least.memory.host / FITS
    return f"resources.memory: {math.ceil((needed + host_bytes) * ranks / 2**30)}GiB"


def _larger_card(hardware: Hardware, needed: float) -> str:
    from orchestrator.cards import cards

    known = cards()
    maker = known[hardware.card].maker if hardware.card in known else ""
    enough = [
        (bool(maker) and card.maker != maker, card.memory_bytes or 0, name)
        for name, card in known.items()
    ]
    name = min((one for one in enough if one[1] >= needed), default=(False, 0, ""))[2]
    larger = f", such as {name}" if name else ", which no card of the table has"
    return f"a card with {gib(needed)} or more{larger}"
