"""All strategies compared: the fastest that fits, the next best, and what would make one fit.

Precision, the global batch and the number of nodes stay as they are; a remedy says what others
would do.
"""

from __future__ import annotations

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
        yield Remedy(_larger_card(question.hardware, least))


def _remedy(question: Question, words: str) -> Iterator[Remedy]:
    found = fitting(question)
    if found:
        best = best_of(found, question.setting)
        yield Remedy(f"{words}: {shape_words(best.setting)}", best)


def _more_nodes(question: Question) -> Iterator[Remedy]:
    """The smallest multiple of the nodes that helps, with the global batch of now."""
    setting = question.setting
    for times in range(2, MOST_TIMES_NODES + 1):
        if times > 8 and times % 8:
            continue
        nodes = setting.num_nodes * times
        product = setting.micro * setting.accumulation
        fewer = product // times if product % times == 0 else 1
        wanted = replace(setting, num_nodes=nodes, micro=1, accumulation=fewer)
        more = replace(question, setting=wanted, node_sizes=())
        found = list(_remedy(more, f"resources.nodes: {nodes}"))
        if found:
            yield from found
            return


def _shorter(question: Question) -> Iterator[Remedy]:
    """Half the context, a quarter and so on, until something fits."""
    context = question.setting.context
    for times in divisors(context):
        if times == 1 or context // times < 128 or times & (times - 1):
            continue
        wanted = replace(question.setting, context=context // times)
        found = list(_remedy(replace(question, setting=wanted), f"context {context // times}"))
        if found:
            yield from found
            return


def _larger_card(hardware: Hardware, least: Estimate) -> str:
    from orchestrator.cards import cards

    needed = least.memory.total / FITS
    enough = [(card.memory_bytes or 0, name) for name, card in cards().items()]
    name = min((pair for pair in enough if pair[0] >= needed), default=(0, ""))[1]
    larger = f", such as {name}" if name else ", which no card of the table has"
    return f"a card with {gib(needed)} or more{larger}"
