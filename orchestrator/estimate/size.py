"""What a setting needs, quickly, for searches: of many equal units a few are gone through.

Each moment of a step is a number of bytes at the n-th unit from the first or from the last one, and
with more units it grows by the same number of bytes each time. Two models of few units therefore
give that of many, exactly.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from orchestrator.estimate.held import held
from orchestrator.estimate.ledger import Ledger
from orchestrator.estimate.memory import memory, ran

if TYPE_CHECKING:
    from orchestrator.estimate.outline import Outline
    from orchestrator.estimate.setting import Setting


class Moments(Ledger):
    """Keeps all sums, and where among them each unit begins: forward, then backward."""

    def __init__(self, start: dict[str, int]) -> None:
        self.totals: list[int] = []
        self.units: list[int] = []
        super().__init__(start)

    def unit(self) -> None:
        self.units.append(len(self.totals))

    def _note(self) -> None:
        self.totals.append(self.total)

    def parts(self, edge: int) -> list[list[int]]:
        """Sums of the first `edge` units forward, of the last ones in both directions, and of the
        first ones backward."""
        first, last, again = self.units[edge], self.units[-edge], len(self.units) // 2
        middle = self.totals[self.units[again - edge] : self.units[again + edge]]
        return [self.totals[:first], middle, self.totals[last:]]


def size(setting: Setting, outline: Outline, overhead_bytes: int) -> tuple[int, int]:
    """Return the bytes of a rank on the device, as memory() has them, and on the CPU."""
    period = setting.checkpointing_every
    edge = max(1, setting.fsdp.prefetch_backward) + period + 1
    units = len(outline.units)
    few = 2 * edge + (units - 2 * edge) % period
    quick = setting.shards and setting.fsdp.version == 2 and units > 2 * (few + period)
    if not quick or not _are_alike(outline):
        needs = memory(setting, outline, overhead_bytes)
        return needs.total, needs.host
    short, longer = (
        _moments(setting, outline, number).parts(edge) for number in (few, few + period)
    )
    times = (units - few) // period
    pairs = zip(chain(*short), chain(*longer), strict=True)
    peak = max(one + (other - one) * times for one, other in pairs)
    return peak + overhead_bytes, sum(held(setting, outline)) if setting.cpu_offload else 0


def _moments(setting: Setting, outline: Outline, units: int) -> Moments:
    return ran(setting, replace(outline, units=outline.units[:units]), Moments)


def _are_alike(outline: Outline) -> bool:
    first = outline.units[0]
    return all(
        unit.kind == first.kind and unit.activation_bytes == first.activation_bytes
        for unit in outline.units
    )
