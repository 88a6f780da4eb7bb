"""What the class FullyShardedDataParallel (FSDP1) holds during a step."""

from __future__ import annotations

from orchestrator.estimate.engines import FLOAT
from orchestrator.estimate.held import flat_length
from orchestrator.estimate.setting import ITEM_BYTES
from orchestrator.estimate.sharded import Costs, Sharded


class Flat(Sharded):
    """A unit is one flat parameter, gathered in place: no buffers, but the next unit comes whole.

    Its gradient is put together from those of its views. Sources: torch/distributed/fsdp,
    _runtime_utils.py and _flat_param.py.
    """

    def backward_ended(self, number: int) -> None:
        cost = self.costs[number]
        self.ledger.pass_by(unsharded=cost.gradients)  # the views' and the flat one
        self.ledger.drop(unsharded=cost.whole)
        self.is_whole.discard(number)
        self.ledger.hold(unsharded=cost.reduced)
        shard = {"gradients": cost.shard}
        if self.setting.shards or cost.reduced:
            self.ledger.hold(**shard)
        self.ledger.drop(unsharded=cost.reduced + cost.gradients)
        if not self.setting.shards and not cost.reduced:
            self.ledger.hold(**shard)
        if self.unsummed:
            self.ledger.drop(unsharded=self._accumulated(number))
        elif self.setting.accumulation > 1:
            self.ledger.drop(**shard)

    def end(self) -> None:
        """All whole parameters have been dropped."""

    def _summed_before(self) -> None:
        self.ledger.hold(gradients=self.state.gradients)

    def _accumulated(self, number: int) -> int:
        return self.costs[number].gradients

    def _gather_ahead(self, number: int) -> None:
        ahead = (number if number >= 0 else len(self.outline.units)) - 1
        if ahead >= 0 and ahead not in self.is_whole:
            self.ledger.hold(unsharded=self.costs[ahead].whole + self.costs[ahead].cast)
            self.ledger.drop(unsharded=self.costs[ahead].cast)
            self.is_whole.add(ahead)

    def _reshards(self, number: int) -> int:
        keeps = self.setting.fsdp.reshard_after_forward is False
        keeps = keeps or self.setting.strategy in ("shard_grad_op", "no_shard")
        return int(number >= 0 and not keeps)

    def _costs(self, number: int) -> Costs:
        setting = self.setting
        item, reduced = ITEM_BYTES[setting.precision], ITEM_BYTES[setting.reductions]
        padded = flat_length(setting, self.unit(number))
        is_copy = setting.shards or setting.precision != "fp32"
        narrow = setting.precision != "fp32"
        return Costs(
            whole=padded * item if is_copy else 0,
            buffer=0,
            cast=padded // setting.num_shards * item if narrow and setting.shards else 0,
            gradients=padded * item,
            reduced=padded * reduced if item != reduced else 0,
            shard=padded // setting.num_shards * FLOAT,
        )
