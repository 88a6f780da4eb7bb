"""What each way to spread a model holds during a step, beside what it holds all the time."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.estimate.activations import is_autocast
from orchestrator.estimate.held import Held, kinds, whole_numbers
from orchestrator.estimate.ledger import Ledger
from orchestrator.estimate.outline import Outline, Unit
from orchestrator.estimate.setting import ITEM_BYTES, Setting

FLOAT = 4


class Engine:
    """A whole copy on each rank: DDP, no_shard of version 2, and dp.

    Units are numbered in the order of the forward pass; the root is -1.
    """

    def __init__(self, setting: Setting, outline: Outline, state: Held, ledger: Ledger) -> None:
        self.setting, self.outline, self.ledger = setting, outline, ledger
        self.state = state
        self.in_buckets = setting.strategy != "dp"

    def unit(self, number: int) -> Unit:
        return self.outline.root if number < 0 else self.outline.units[number]

    def begin(self) -> None:
        """The last micro-batch of a step begins."""
        state, ddp = self.state, self.setting.ddp
        viewed = self.in_buckets and ddp.gradient_as_bucket_view
        buckets = 0 if viewed or not self.in_buckets else state.gradients
        if ddp.hook in ("fp16", "bf16"):
            buckets += state.gradients // 2
        elif ddp.hook == "powersgd":  # what it has not sent yet
            buckets += state.gradients
        self.ledger.hold(buckets=buckets)
        self.grows = not viewed
        if viewed or self.setting.accumulation > 1:
            self.ledger.hold(gradients=state.gradients)
            self.grows = False
        self.forward(-1)

    def forward(self, number: int) -> None:
        """A unit's forward pass begins."""
        if is_autocast(self.setting):
            self.ledger.hold(working=sum(self._narrow(number)))

    def forward_ended(self, number: int, recomputed: bool) -> None:
        """A unit's forward pass has ended."""

    def loss_known(self, recomputed: list[bool]) -> None:
        """All of the forward pass has ended, and with it autocast's copies that no one needs."""
        if is_autocast(self.setting):
            for number in range(-1, len(self.outline.units)):
                matrices, rest = self._narrow(number)
                again = number >= 0 and recomputed[number]
                self.ledger.drop(working=rest + (matrices if again else 0))

    def backward(self, number: int, recomputed: bool) -> None:
        """A unit's backward pass begins."""
        if is_autocast(self.setting) and recomputed:
            self.ledger.hold(working=self._narrow(number)[0])

    def gradients(self, number: int, share: float) -> None:
        """So much of a unit's gradients is made, in 0 to 1; the largest passes by."""
        largest = max((p.numel for p in self.unit(number).parameters if p.trainable), default=0)
        if self.grows:
            made = sum(p.numel * p.item_bytes for p in self.unit(number).parameters if p.trainable)
            self.ledger.hold(gradients=round(made * share))
        else:
            self.ledger.pass_by(working=largest * FLOAT)

    def backward_ended(self, number: int) -> None:
        """A unit's backward pass has ended."""
        if is_autocast(self.setting):
            self.ledger.drop(working=self._narrow(number)[0])

    def end(self) -> None:
        """All gradients are summed."""

    def _narrow(self, number: int) -> tuple[int, int]:
        """Autocast's copies: of matrices, and of what else a linear layer takes."""
        item = ITEM_BYTES[self.setting.precision]
        linear = [p for p in self.unit(number).parameters if is_linear(p.name)]
        matrices = sum(p.numel for p in linear if len(p.shape) > 1)
        return item * matrices, item * (sum(p.numel for p in linear) - matrices)


def is_linear(name: str) -> bool:
    """Whether a parameter of the bundled GPT belongs to a matrix product; the head may be tied."""
    return "norm" not in name and not name.startswith("position")


class Costs(NamedTuple):
    """Bytes of one unit under fully_shard.

    Args:
        whole: its parameters, gathered; buffer: what they are gathered in.
        gradients: unsharded; reduced: what the sum over ranks takes in; shard: what comes out.
    """

    whole: int
    buffer: int
    cast: int
    gradients: int
    reduced: int
    shard: int


class Sharded(Engine):
    """fully_shard; the same events as torch/distributed/fsdp/_fully_shard has them."""

    def begin(self) -> None:
        setting = self.setting
        units = {n: self.unit(n) for n in range(-1, len(self.outline.units))}
        known = {kind: self._costs(unit) for kind, unit in kinds(units.values()).items()}
        self.costs = {n: known[unit.kind] for n, unit in units.items()}
        self.item = ITEM_BYTES[setting.precision]
        self.buffered = self.reducing = self.kept_sums = 0
        self.ahead: list[int] = []
        self.is_whole: set[int] = set()
        self.unsummed = 0
        if setting.accumulation > 1:
            if setting.gradient_sync == "last":
                self.unsummed = sum(self._accumulated(n) for n in self.costs)
                self.ledger.hold(unsharded=self.unsummed)
            elif not setting.cpu_offload:
                self.ledger.hold(gradients=self.state.gradients)
        self.forward(-1)

    def forward(self, number: int) -> None:
        cost = self.costs[number]
        self.ledger.hold(unsharded=cost.buffer + cost.cast)
        self.ledger.drop(unsharded=cost.cast + self.buffered)
        self.ledger.hold(unsharded=cost.whole)
        self.is_whole.add(number)
        self.buffered = cost.buffer

    def forward_ended(self, number: int, recomputed: bool) -> None:
        reshard = self._reshards(number)
        if reshard:
            self.ledger.drop(unsharded=self.costs[number].whole)
            self.is_whole.discard(number)
        if reshard > 1:
            self.ledger.hold(unsharded=self.costs[number].whole // reshard)

    def loss_known(self, recomputed: list[bool]) -> None:
        self.ledger.drop(unsharded=self.buffered)
        self.buffered = 0
        self.forward_ended(-1, False)

    def backward(self, number: int, recomputed: bool) -> None:
        cost = self.costs[number]
        if number not in self.is_whole:
            if number not in self.ahead:
                self.ledger.hold(unsharded=cost.buffer + cost.cast)
                self.ledger.drop(unsharded=cost.cast)
            else:
                self.ahead.remove(number)
            self.ledger.hold(unsharded=cost.whole)
            self.ledger.drop(unsharded=cost.buffer)
            reshard = self._reshards(number)
            if reshard > 1:
                self.ledger.drop(unsharded=cost.whole // reshard)
            self.is_whole.add(number)
        self._gather_ahead(number)

    def gradients(self, number: int, share: float) -> None:
        self.ledger.hold(unsharded=round(self.costs[number].gradients * share))

    def backward_ended(self, number: int) -> None:
        cost = self.costs[number]
        self.ledger.drop(unsharded=cost.whole + self.reducing)
        self.is_whole.discard(number)
        self.reducing = cost.reduced
        if self.unsummed:
            self.ledger.drop(unsharded=cost.gradients)
        shard = {"working" if self.setting.cpu_offload else "gradients": cost.shard}
        self.ledger.hold(unsharded=cost.reduced)
        self.ledger.drop(unsharded=self._accumulated(number) if self.unsummed else cost.gradients)
        self.ledger.hold(**shard)
        adds = self.setting.accumulation > 1 and not self.unsummed
        if self.setting.cpu_offload or adds:
            self.ledger.drop(**shard)

    def end(self) -> None:
        self.ledger.drop(unsharded=self.reducing)

    def _gather_ahead(self, number: int) -> None:
        """Buffers of the units whose turn comes next."""
        last = number - 1 if number >= 0 else len(self.outline.units) - 1
        depth = max(1, self.setting.fsdp.prefetch_backward if number >= 0 else 1)
        for ahead in range(last, max(-1, last - depth), -1):
            if ahead not in self.is_whole and ahead not in self.ahead:
                cost = self.costs[ahead]
                self.ledger.hold(unsharded=cost.buffer + cost.cast)
                self.ledger.drop(unsharded=cost.cast)
                self.ahead.append(ahead)

    def _reshards(self, number: int) -> int:
        """0: stays whole after the forward pass; 1: is dropped; more: is spread over so many."""
        given = self.setting.fsdp.reshard_after_forward
        if given is None:
            return int(number >= 0 and self.setting.strategy != "shard_grad_op")
        return int(given)

    def _accumulated(self, number: int) -> int:
        reduced = ITEM_BYTES[self.setting.reductions]
        return self.costs[number].gradients // ITEM_BYTES[self.setting.precision] * reduced

    def _costs(self, unit: Unit) -> Costs:
        setting = self.setting
        item, shards = ITEM_BYTES[setting.precision], setting.num_shards
        padded = whole_numbers(setting, unit)
        trained = sum(
            int(p.trainable) * p.numel // (setting.tensor if p.split is not None else 1)
            for p in unit.parameters
        )
        narrow = setting.precision != "fp32"
        return Costs(
            whole=padded * item,
            buffer=padded * item if shards > 1 else 0,
            cast=padded // shards * item if narrow else 0,
            gradients=trained * item,
            reduced=padded * ITEM_BYTES[setting.reductions],
            shard=padded // shards * FLOAT,
        )
