"""What of all settings fits, and which of these is the best."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from orchestrator.estimate.held import held
from orchestrator.estimate.memory import floor
from orchestrator.estimate.pace import pace
from orchestrator.estimate.reason import fastest_of, gib
from orchestrator.estimate.size import size
from orchestrator.estimate.traffic import traffic
from orchestrator.estimate.variants import RECOMPUTED, batches, complexity, each_batch, shapes
from orchestrator.estimate.whole import FITS, estimate

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate
    from orchestrator.estimate.hardware import Hardware
    from orchestrator.estimate.outline import Outline
    from orchestrator.estimate.setting import Setting

# Faster by less than this is no reason for a more complicated setting.
TIE_SHARE = 0.02


@dataclass(frozen=True)
class Question:
    """What is asked.

    Args:
        setting: the job as it is written.
        fixed: names of what stays so (see lines.KEYS).
        allowed: whether the job file may hold a setting.
        node_sizes: all numbers of nodes that an attempt may have; it must fit with each.
        host_bytes: of the CPU's memory, for each rank; None where that is not known.
        on_cpu: whether the ranks have no GPUs: what is offloaded then stays in the same memory.
        outline_at: the outline with another context; None where it is not known.
    """

    setting: Setting
    outline: Outline
    hardware: Hardware
    fixed: frozenset[str] = frozenset()
    allowed: Callable[[Setting], bool] = lambda setting: True
    node_sizes: tuple[int, ...] = ()
    host_bytes: int | None = None
    on_cpu: bool = False
    outline_at: Callable[[int], Outline | None] = lambda context: None
    _floors: dict[tuple[int, str, int, bool], int] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _sizes: dict[Setting, tuple[int, int]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def estimate(self, setting: Setting) -> Estimate:
        """Return its plan; it fits if it does with each number of nodes and on the CPU too."""
        one = estimate(setting, self.outline, self.hardware)
        return one if one.fits is None else replace(one, fits=self.fits(setting))

    def fits(self, setting: Setting) -> bool:
        """Whether it fits with each number of nodes; fewer nodes make more micro-batches."""
        return all(self._fits(*self._needs(one)) for one in self._at_sizes(setting))

    def _fits(self, size_bytes: int, host_bytes: int) -> bool:
        if self.on_cpu:
            return size_bytes + host_bytes <= self.counted_on
        enough = self.host_bytes is None or host_bytes <= self.host_bytes
        return enough and size_bytes <= self.counted_on

    def obstacle(self, setting: Setting) -> str:
        """Return what does not fit, and with which number of nodes; "" if all does."""
        for one in self._at_sizes(setting):
            size_bytes, host_bytes = self._needs(one)
            if self._fits(size_bytes, host_bytes):
                continue
            nodes = "1 node" if one.num_nodes == 1 else f"{one.num_nodes} nodes"
            where = "" if one.num_nodes == setting.num_nodes else f" with {nodes}"
            if self.on_cpu and host_bytes:
                return f"{gib(size_bytes + host_bytes)}{where} with what is offloaded"
            if size_bytes > self.counted_on:
                return f"{gib(size_bytes)}{where}"
            room = f", and there are {gib(self.host_bytes)}" if self.host_bytes else ""
            return f"{gib(host_bytes)} on the CPU for each rank{where}{room}"
        return ""

    @property
    def counted_on(self) -> float:
        """Bytes that a plan may need."""
        return (self.hardware.memory_bytes or 0) * FITS

    def size_bytes(self, setting: Setting) -> int:
        """Bytes of the fullest rank at its peak."""
        return self._needs(setting)[0]

    def hopeful(self, shape: Setting, each: Iterable[Setting]) -> Iterator[Setting]:
        """Yield those of a shape's batches that may fit, by a quick lower bound."""
        state, room = held(shape, self.outline), self.counted_on - self.hardware.context_bytes
        between = 0 if shape.cpu_offload else state.parameters + state.optimizer
        if not shape.cpu_offload and sum(state) > room:
            return
        for one in each:
            key = one.micro, one.checkpointing, one.checkpointing_every, one.uses_fsdp
            if key not in self._floors:
                self._floors[key] = floor(one, self.outline)
            if between + self._floors[key] <= room:
                yield one

    def _needs(self, setting: Setting) -> tuple[int, int]:
        # Of accumulation it matters only whether there is any.
        alike = setting if setting.accumulation < 3 else replace(setting, accumulation=2)
        if alike not in self._sizes:
            self._sizes[alike] = size(alike, self.outline, self.hardware.context_bytes)
        return self._sizes[alike]

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


def form(setting: Setting) -> tuple[str, int | None]:
    return setting.strategy, setting.shard_group


def fitting(question: Question) -> list[Estimate]:
    """What fits; with offloading only where nothing does without it, since that is far slower."""
    if "cpu_offload" in question.fixed:
        return _estimates(question, question.setting.cpu_offload)
    return _estimates(question, False) or ([] if question.on_cpu else _estimates(question, True))


def _candidates(question: Question, offload: bool) -> Iterator[Setting]:
    for shape in shapes(question.setting, question.fixed):
        one = replace(shape, cpu_offload=offload)
        # Sharding over one rank spreads nothing; it is there for what lies on the CPU, and for
        # tensor groups, which are another way to spread.
        spreads = one.num_shards > 1 or one.tensor > 1 or not one.shards
        each = each_batch(one, question.fixed)
        if (one.shards if offload else spreads) and any(map(question.allowed, each)):
            yield one


def _estimates(question: Question, offload: bool) -> list[Estimate]:
    """What fits. Where the whole batch fits at once, computing anything again is only slower."""
    found: dict[Setting, None] = {}
    at_once: set[object] = set()
    for shape in _candidates(question, offload):
        if form(shape) in at_once:
            continue
        for setting in _largest(question, shape):
            found[setting] = None
            if setting.accumulation == 1 or "micro" in question.fixed:
                at_once.add(form(shape))
    return [question.estimate(one) for one in _fast(question, list(found))]


def _fast(question: Question, found: list[Setting]) -> list[Setting]:
    """Of each strategy and size of groups those that are about as fast as its fastest; all where
    times are not known. No other is ever taken, and their figures need not be reckoned."""
    paces = [
        pace(one, question.outline, traffic(one, question.outline), question.hardware)
        for one in found
    ]
    times = [(one, known.step_s) for one, known in zip(found, paces, strict=True) if known]
    if len(times) < len(found):
        return found
    fastest: dict[object, float] = {}
    for one, step_s in times:
        fastest[form(one)] = min(step_s, fastest.get(form(one), step_s))
    return [one for one, step_s in times if step_s <= fastest[form(one)] * (1 + TIE_SHARE)]


def _largest(question: Question, shape: Setting) -> Iterator[Setting]:
    """Yield the largest micro-batch that fits, and the one that was asked for if that does too."""
    each = list(question.hopeful(shape, each_batch(shape, question.fixed)))
    each = _allowed(question, each)
    fitting = [one for group in _alike(each) for one in _first_that_fits(question, group)]
    if not fitting:
        return
    largest = max(fitting, key=lambda one: (one.micro, one.gradient_sync == "last"))
    yield largest
    wanted = question.setting.micro
    if wanted != largest.micro:
        yield from islice((one for one in each if one.micro == wanted and question.fits(one)), 1)


def _allowed(question: Question, each: list[Setting]) -> list[Setting]:
    """Those that the job file may hold. With one number of nodes it asks of a batch only when
    gradients are summed and whether there is accumulation."""
    if len(question.node_sizes) > 1:
        return [one for one in each if question.allowed(one)]
    known: dict[object, bool] = {}
    for one in each:
        if _kind(one) not in known:
            known[_kind(one)] = question.allowed(one)
    return [one for one in each if known[_kind(one)]]


def _kind(setting: Setting) -> tuple[str, bool]:
    return setting.gradient_sync, setting.accumulation > 1


def _alike(each: list[Setting]) -> list[list[Setting]]:
    """By what else than their size matters for memory: within a group more sequences need more."""
    groups: dict[object, list[Setting]] = {}
    for one in each:
        groups.setdefault(_kind(one), []).append(one)
    return list(groups.values())


def _first_that_fits(question: Question, each: list[Setting]) -> list[Setting]:
    """The first that fits of some of the same kind, the largest first."""
    if question.fits(each[0]):
        return each[:1]
    if not question.fits(each[-1]):
        return []
    first = bisect_left(each, True, key=question.fits)
    return each[first : first + 1]


def least_of(question: Question) -> Estimate | None:
    """What needs least memory of all; without offloading, unless that is fixed."""
    offload = question.setting.cpu_offload if "cpu_offload" in question.fixed else False
    found = [
        one
        for shape in _candidates(question, offload)
        for one in batches(shape, question.fixed)[-2:]
        if question.allowed(one)
    ]
    return question.estimate(min(found, key=question.size_bytes)) if found else None


def best_of(found: Iterable[Estimate], wanted: Setting) -> Estimate:
    """Return the fastest, or of those that are nearly as fast the simplest; what goes by the plain
    rule where times are not known. There is at least one."""
    found = list(found)
    fastest = fastest_of(found)
    if fastest is None or any(e.pace is None for e in found):
        return min(found, key=lambda e: (_effort(e), complexity(e.setting, wanted)))
    tied = [e for e in found if _step_s(e) <= _step_s(fastest) * (1 + TIE_SHARE)]
    return min(tied, key=lambda e: complexity(e.setting, wanted))


def _step_s(one: Estimate) -> float:
    return one.pace.step_s if one.pace else 0.0


def _effort(one: Estimate) -> tuple[int, ...]:
    """What is compared where no time is known: the rule that DDP is for what fits, and on several
    nodes groups inside a node are for what does not."""
    setting = one.setting
    recomputed = RECOMPUTED.index(setting.checkpointing)
    inside = setting.num_shards * setting.tensor <= setting.ranks_per_node
    return (setting.cpu_offload, recomputed, setting.shards and not inside)
