"""Models that tests give to train.model.factory, as a user's own."""

from __future__ import annotations

import os
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


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


class Unreduced(Words):
    """Returns a loss per sequence where one number is asked for."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return super().forward(tokens, targets).expand(len(tokens))


class ValidatesToNan(Words):
    """Trains well, and has no number to show for it."""

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().forward(tokens, targets)
        return loss if self.training else loss * float("nan")


def validates_to_nan() -> nn.Module:
    return ValidatesToNan()


def drawn_by_numpy() -> nn.Module:
    model = Words()
    values = np.random.standard_normal(model.head.weight.shape) * random.random()
    model.head.weight.data = torch.from_numpy(values).float()
    return model


def words(**args: bool) -> nn.Module:
    return Words(**args)


def explodes(at: int) -> nn.Module:
    return Explodes(at)


def unreduced() -> nn.Module:
    return Unreduced()


def refused_on_rank_1() -> nn.Module:
    if os.environ["RANK"] == "1":
        raise ValueError("not on this rank")
    return Words()


def crashes_on_rank_1() -> nn.Module:
    if os.environ["RANK"] == "1":
        raise ConnectionError("no route")
    return Words()
