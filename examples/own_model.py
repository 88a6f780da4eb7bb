"""A small model of one's own, for single_gpu.py, ddp.py and own-model.yaml."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 32  # bytes that it looks back


class NextByte(nn.Module):
    """Says which byte of a text comes next. Its forward returns the loss, as nats per byte."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        features, _ = self.memory(self.embedding(tokens))  # [batch, length, width]
        return functional.cross_entropy(self.head(features).flatten(0, 1), targets.flatten())


def python_docs() -> torch.Tensor:
    """The text that comes with each Python, cut into rows of one byte more than the context."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    rows = len(text) // (CONTEXT + 1)
    return torch.tensor(list(text[: rows * (CONTEXT + 1)])).view(rows, CONTEXT + 1)
