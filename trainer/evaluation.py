"""The loss on samples that are not trained on, summed by each rank over its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from trainer.config import TrainerConfig
from trainer.parallel import autocast, split


@torch.no_grad()
def validation_totals(
    module: nn.Module,
    batches: Iterable[Tensor],
    config: TrainerConfig,
    device: torch.device,
    must_stop: Callable[[], bool],
) -> Tensor:
    """Sum of losses, number of tokens, whether this rank has to stop: float64 [3] on `device`.

    module: the model without a wrapper, which would synchronise, while ranks differ in batches.
    batches: this rank's windows, int64 [B, T + 1] each. must_stop is asked before each batch.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    module.eval()
    for batch in batches:
        if must_stop():
            totals[2] = 1
            break
        tokens, targets = split(batch, device)
        with autocast(config, device):
            loss = module(tokens, targets)
        totals[0] += loss.double() * targets.numel()
        totals[1] += targets.numel()
    module.train()
    return totals
