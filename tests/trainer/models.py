"""Models that tests give to train.model.factory, as a user's own."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer import phase
from trainer.config import ModelConfig
from trainer.model import GPT


class Words(nn.Module):
    """Predicts a token from the one before; with parts that tests ask for."""

    def __init__(self, width: int = 16, unused: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.norm = nn.BatchNorm1d(width) if norm else None
        self.unused = nn.Linear(width, width) if unused else None
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1)  # [B * T, width]
        if self.norm is not None:
            x = self.norm(x)
        return functional.cross_entropy(self.head(x), targets.flatten())


class Explodes(Words):
    """Its loss is no number from the given forward pass in training on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.passes = 0

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        self.passes += self.training
        loss = super().forward(tokens, targets)
        return loss * float("nan") if self.passes >= self.at else loss


class Poisoned(Words):
    """In the given steps, on one rank, its loss or only its gradient is no number."""

    def __init__(self, steps: list[int], rank: int, gradient_only: bool = False) -> None:
        super().__init__()
        self.steps = steps if os.environ["RANK"] == str(rank) else []
        self.gradient_only = gradient_only

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().forward(tokens, targets)
        if phase.current.name != "step" or phase.current.step + 1 not in self.steps:
            return loss
        if self.gradient_only:
            return loss + (self.head.weight * 0).sum().sqrt()  # adds 0; its gradient is 0 / 0
        return loss * float("nan")


class Flips(Words):
    """On one rank a weight changes by itself, in the given step."""

    def __init__(self, step: int, rank: int) -> None:
        super().__init__()
        self.step = step if os.environ["RANK"] == str(rank) else 0

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if phase.current.name == "step" and phase.current.step + 1 == self.step:
            with torch.no_grad():
                self.head.bias[0] += 1e-6
        return super().forward(tokens, targets)


class Lean(Words):
    """It fails where a validation pass finds gradients."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if not self.training:
            assert [name for name, p in self.named_parameters() if p.grad is not None] == []
        return super().forward(tokens, targets)


class TwoHeads(Words):
    """Two layers of the same shape, made in another order on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        names = ["first", "second"] if os.environ["RANK"] != "1" else ["second", "first"]
        for name in names:
            self.add_module(name, nn.Linear(16, 16))


class Frozen(Words):
    """Its embedding is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding.weight.requires_grad_(False)


class Awkward(Words):
    """It keeps a tensor that is neither a parameter nor a buffer, so it needs memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((16,), 2.0)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1) * self.scale
        return functional.cross_entropy(self.head(x), targets.flatten())


class Pocketed(Words):
    """As Awkward, with the tensor in a list in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.pocket = {"scales": [torch.full((16,), 2.0)]}

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1) * self.pocket["scales"][0]
        return functional.cross_entropy(self.head(x), targets.flatten())


class Stack(Words):
    """With a list of blocks, a mask that is no part of its state, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.register_buffer("mask", torch.rand(16), persistent=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens).flatten(0, 1) * self.mask
        for block in self.blocks:
            x = x + block(x)
        return functional.cross_entropy(self.head(x), targets.flatten())


class Unreduced(Words):
    """Returns a loss per sequence where one number is asked for."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens, targets).expand(len(tokens))


class AsksForValues(Words):
    """What it computes depends on a value."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens, targets) * (1 if tokens.sum().item() == 0 else 2)


class Stumbles(Words):
    """Built well, it cannot be called."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        raise KeyError("mask")


class ValidatesToNan(Words):
    """Trains well, and has no number to show for it."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().forward(tokens, targets)
        return loss if self.training else loss * float("nan")


def asks_to_stop() -> nn.Module:
    """Takes so long to build that somebody asks rank 1 to stop."""
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return Words()


def validates_to_nan() -> nn.Module:
    return ValidatesToNan()


def drawn_by_numpy() -> nn.Module:
    model = Words()
    values = np.random.standard_normal(model.head.weight.shape) * random.random()
    model.head.weight.data = torch.from_numpy(values).float()
    return model


def words(**args: Any) -> nn.Module:
    return Words(**args)


def lean() -> nn.Module:
    return Lean()


def explodes(at: int) -> nn.Module:
    return Explodes(at)


def poisoned(steps: list[int], rank: int, gradient_only: bool = False) -> nn.Module:
    return Poisoned(steps, rank, gradient_only)


def flips(step: int, rank: int) -> nn.Module:
    return Flips(step, rank)


def two_heads() -> nn.Module:
    return TwoHeads()


def frozen() -> nn.Module:
    return Frozen()


def awkward() -> nn.Module:
    return Awkward()


def pocketed() -> nn.Module:
    return Pocketed()


def stack() -> nn.Module:
    return Stack()


def stack_with_frozen_block() -> nn.Module:
    model = Stack()
    model.blocks[0].requires_grad_(False)
    return model


def unreduced() -> nn.Module:
    return Unreduced()


def asks_for_values() -> nn.Module:
    return AsksForValues()


def built_from_values() -> nn.Module:
    model = Words()
    if model.head.weight.sum().item() == 0:
        raise ValueError("not drawn")
    return model


def stumbles() -> nn.Module:
    return Stumbles()


def fails() -> nn.Module:
    raise RuntimeError("no such luck")


def gpt(layers: int, heads: int, width: int, context: int, vocab_size: int) -> nn.Module:
    sizes = ModelConfig(layers, heads, width, context, None, 0.0, True, None, {}, None)
    return GPT(sizes, vocab_size)


def refused_on_rank_1() -> nn.Module:
    if os.environ["RANK"] == "1":
        raise ValueError("not on this rank")
    return Words()


def crashes_on_rank_1() -> nn.Module:
    if os.environ["RANK"] == "1":
        raise ConnectionError("no route")
    return Words()
