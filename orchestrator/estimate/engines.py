"""What each way to spread a model holds during a step, beside what it holds all the time."""

from __future__ import annotations

from orchestrator.estimate.activations import is_autocast
from orchestrator.estimate.held import Held
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
        # A gradient that was added up outside its bucket, without a sum, moves into it at the end.
        outside = viewed and self.setting.accumulation > 1 and self.setting.gradient_sync == "last"
        buckets = state.gradients if self.in_buckets and (outside or not viewed) else 0
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

    def head_gradients(self) -> None:
        """The head's matrix has its gradient; a tied one waits for the embedding's."""
        self.ledger.hold(working=self._head())

    def root_gradients(self) -> None:
        """The embeddings have theirs. Autograd adds a tied head's to it in a tensor of its own, so
        that for a moment there are three of that size."""
        self.ledger.pass_by(working=self._head() * (2 if self.is_tied else 1))
        self.ledger.drop(working=self._head())
        self.gradients(-1, 1)

    @property
    def is_tied(self) -> bool:
        """Whether the head's matrix is the embedding's."""
        return not any(p.name == "head.weight" for p in self.outline.root.parameters)

    def _head(self) -> int:
        return self.outline.vocab_size * self.outline.width * FLOAT

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
