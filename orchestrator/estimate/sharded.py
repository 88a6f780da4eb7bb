"""What fully_shard (FSDP2) holds during a step, beside a rank's own part of everything."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.estimate.engines import FLOAT, Engine
from orchestrator.estimate.held import whole_numbers
from orchestrator.estimate.setting import ITEM_BYTES


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
        kinds = {n: self.unit(n).kind for n in range(-1, len(self.outline.units))}
        one_of = {kind: n for n, kind in kinds.items()}
        known = {kind: self._costs(n) for kind, n in one_of.items()}
        self.costs = {n: known[kind] for n, kind in kinds.items()}
        self.item = ITEM_BYTES[setting.precision]
        self.buffered = self.reducing = 0
        self.ahead: list[int] = []
        self.is_whole: set[int] = set()
        self.unsummed = 0
        if setting.accumulation > 1:
            if setting.gradient_sync == "last":
                self.unsummed = sum(self._accumulated(n) for n in self.costs)
                self.ledger.hold(unsharded=self.unsummed)
            else:
                self._summed_before()
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

    def head_gradients(self) -> None:
        self.ledger.hold(unsharded=self._head())

    def root_gradients(self) -> None:
        """A tied head's gradient is added to the embedding's, in a third tensor, and then makes
        room."""
        if self.is_tied:
            self.ledger.pass_by(unsharded=2 * self._head())
        else:
            self.ledger.drop(unsharded=self._head())
        self.gradients(-1, 1)
        if self.is_tied:
            self.ledger.drop(unsharded=self._head())

    def _head(self) -> int:
        return self.outline.vocab_size * self.outline.width * self.item

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

    def _summed_before(self) -> None:
        """Sums of an earlier micro-batch; torch keeps the last buffer until the last of them."""
        if not self.setting.cpu_offload:
            self.ledger.hold(gradients=self.state.gradients)
        self.reducing = self.costs[-1].reduced
        self.ledger.hold(unsharded=self.reducing)

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

    def _costs(self, number: int) -> Costs:
        setting, unit = self.setting, self.unit(number)
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
