"""All strategies compared: the fastest that fits, the next best, and what would make one fit.

Precision, the global batch and the number of nodes stay as they are; a remedy says what others
would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from orchestrator.estimate.memory import memory
from orchestrator.estimate.reason import gib, reason_for, reason_without, shape_words
from orchestrator.estimate.variants import batches, complexity, divisors, shapes
from orchestrator.estimate.whole import FITS, estimate

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware
    from orchestrator.estimate.outline import Outline
    from orchestrator.estimate.setting import Setting

# Faster by less than this is no reason for a more complicated setting.
TIE_SHARE = 0.02
# How many times the nodes a remedy may name.
MOST_TIMES_NODES = 64


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


@dataclass(frozen=True)
class Question:
    """What is asked.

    Args:
        setting: the job as it is written.
        fixed: names of what stays so (see lines.KEYS).
        allowed: whether the job file may hold a setting.
        node_sizes: all numbers of nodes that an attempt may have; it must fit with each.
    """

    setting: Setting
    outline: Outline
    hardware: Hardware
    fixed: frozenset[str] = frozenset()
    allowed: Callable[[Setting], bool] = lambda setting: True
    node_sizes: tuple[int, ...] = ()
    _sizes: dict[Setting, int] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def estimate(self, setting: Setting) -> Estimate:
        return estimate(setting, self.outline, self.hardware)

    def fits(self, setting: Setting) -> bool:
        """Whether it fits with each number of nodes; fewer nodes make more micro-batches."""
        counted_on = (self.hardware.memory_bytes or 0) * FITS
        return all(self.size_bytes(one) <= counted_on for one in self._at_sizes(setting))

    def size_bytes(self, setting: Setting) -> int:
        """Bytes of the fullest rank at its peak."""
        if setting not in self._sizes:
            held = memory(setting, self.outline, self.hardware.context_bytes)
            self._sizes[setting] = held.total
        return self._sizes[setting]

    def _at_sizes(self, setting: Setting) -> Iterator[Setting]:
        yield setting
        passes = setting.accumulation * setting.num_nodes
        for nodes in self.node_sizes:
            if nodes != setting.num_nodes and passes % nodes == 0:
                yield _with_nodes(setting, nodes, passes // nodes)


def _with_nodes(setting: Setting, nodes: int, accumulation: int) -> Setting:
    """The setting on other nodes; a group that is all ranks then is full_shard, as in the trainer.
    Nothing else changes."""
    after = replace(setting, num_nodes=nodes, accumulation=accumulation)
    if after.shard_group is not None and after.shard_group * after.tensor >= after.num_ranks:
        return replace(after, strategy="full_shard", shard_group=None)
    return after


def advise(question: Question) -> Advice:
    """Return the fastest setting that fits and its reason, or what would make one fit."""
    if question.hardware.memory_bytes is None:
        return Advice(None, None, None, (), NO_CARD)
    found = _fitting(question)
    if not found:
        least = _least(question)
        remedies = tuple(_remedies(question, least))
        return Advice(None, None, least, remedies, reason_without(least, question.hardware))
    wanted = question.setting
    best = _best(found, wanted)
    others = [e for e in found if _form(e.setting) != _form(best.setting)]
    runner_up = _best(others, wanted) if others else None
    words = reason_for(best, found, _whole_copy(question), question.hardware)
    return Advice(best, runner_up, None, (), words)


NO_CARD = (
    "The card's memory is not known, so nothing can be said to fit: write resources.gpu_type into "
    "the job file, or `hardware: {card: NAME}` or `hardware: {gpu_memory: 80GiB}` into the cluster "
    "profile."
)


def _form(setting: Setting) -> tuple[str, int | None]:
    return setting.strategy, setting.shard_group


def _fitting(question: Question) -> list[Estimate]:
    """What fits; with offloading only where nothing does without it, since that is far slower."""
    if "cpu_offload" in question.fixed:
        return _estimates(question, question.setting.cpu_offload)
    return _estimates(question, False) or _estimates(question, True)


def _candidates(question: Question, offload: bool) -> Iterator[Setting]:
    for shape in shapes(question.setting, question.fixed):
        one = replace(shape, cpu_offload=offload)
        if (one.shards or not offload) and question.allowed(one):
            yield one


def _estimates(question: Question, offload: bool) -> list[Estimate]:
    """What fits. Where the whole batch fits at once, computing anything again is only slower."""
    found: dict[Setting, Estimate] = {}
    at_once: set[object] = set()
    for shape in _candidates(question, offload):
        if _form(shape) in at_once:
            continue
        for setting in _largest(question, shape):
            found[setting] = question.estimate(setting)
            if setting.accumulation == 1 or "micro" in question.fixed:
                at_once.add(_form(shape))
    return list(found.values())


def _largest(question: Question, shape: Setting) -> Iterator[Setting]:
    """Yield the largest micro-batch that fits, and the one that was asked for if that does too."""
    each = [one for one in batches(shape, question.fixed) if question.allowed(one)]
    # Micro-batches of 1, with gradients that are not kept, need least.
    if not each or not any(map(question.fits, {each[0], *each[-2:]})):
        return
    largest = next((one for one in each if question.fits(one)), None)
    if largest is None:
        return
    yield largest
    wanted = question.setting.micro
    if wanted != largest.micro:
        yield from islice((one for one in each if one.micro == wanted and question.fits(one)), 1)


def _least(question: Question) -> Estimate | None:
    """What needs least memory of all, without and, unless that is fixed, with offloading."""
    offload = question.setting.cpu_offload if "cpu_offload" in question.fixed else False
    found = [
        one
        for shape in _candidates(question, offload)
        for one in batches(shape, question.fixed)[-2:]
        if question.allowed(one)
    ]
    return question.estimate(min(found, key=question.size_bytes)) if found else None


def _best(found: Iterable[Estimate], wanted: Setting) -> Estimate:
    found = list(found)
    if any(e.pace is None for e in found):
        return min(found, key=lambda e: (_effort(e), complexity(e.setting, wanted)))
    fastest = min(_step_s(e) for e in found)
    tied = [e for e in found if _step_s(e) <= fastest * (1 + TIE_SHARE)]
    return min(tied, key=lambda e: complexity(e.setting, wanted))


def _step_s(one: Estimate) -> float:
    return one.pace.step_s if one.pace else 0.0


def _effort(one: Estimate) -> tuple[int, ...]:
    """What is compared where no time is known: the rule that DDP is for what fits, and on several
    nodes groups inside a node are for what does not."""
    setting = one.setting
    recomputed = ("none", "selective", "full").index(setting.checkpointing)
    inside = setting.num_shards * setting.tensor <= setting.ranks_per_node
    return (setting.cpu_offload, recomputed, setting.shards and not inside)


def _whole_copy(question: Question) -> Estimate | None:
    """The least that ddp needs: a whole copy on each rank."""
    setting = question.setting
    if setting.tensor > 1:
        return None
    ddp = replace(setting, strategy="ddp", shard_group=None, reductions="fp32", cpu_offload=False)
    fixed = question.fixed - {"strategy", "shard_group", "cpu_offload"} | {"checkpointing"}
    return question.estimate(min(batches(ddp, fixed), key=question.size_bytes))


def _remedies(question: Question, least: Estimate | None) -> Iterator[Remedy]:
    """Yield what would help, the smallest change first."""
    free = question.fixed & {"micro", "cpu_offload", "checkpointing", "gradient_sync", "strategy"}
    if free:
        loose = replace(question, fixed=question.fixed - free - {"accumulation", "shard_group"})
        yield from _remedy(loose, "what the job file has written left open")
    if "cpu_offload" in question.fixed:
        open_offload = replace(question, fixed=question.fixed - {"cpu_offload"})
        yield from _remedy(open_offload, "parallelism.cpu_offload: true")
    yield from _more_nodes(question)
    yield from _shorter(question)
    if least is not None:
        yield Remedy(_larger_card(question.hardware, least))


def _remedy(question: Question, words: str) -> Iterator[Remedy]:
    found = _fitting(question)
    if found:
        best = _best(found, question.setting)
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
