"""The loss on samples that are not trained on, summed by each rank over its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from trainer.parallel import split
from trainer.parallelized import Parallelized
from trainer.samples import Samples, validation_batches
from trainer.shared_beats import SharedBeats
from trainer.stop import any_rank
from trainer.token_counts import mask

Batch = tuple[Tensor, bool]  # windows, int64 [B, T + 1], and whether they count


@torch.no_grad()
def validation_totals(
    parallel: Parallelized,
    batches: Iterable[Batch],
    device: torch.device,
    must_stop: Callable[[], bool],
    beats: SharedBeats,
) -> Tensor:
    """Sum of losses, tokens that count, whether this rank has to stop: float64 [3] on `device`.

    batches: see batches_of. must_stop is asked before each of them. Where a forward pass waits for
    the other ranks, all stop before the same batch. beats: told of each batch.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    in_lockstep = parallel.in_lockstep
    module, ignored = parallel.module.eval(), parallel.config.data.ignore_token
    parallel.before_evaluation()
    for batch, counts in batches:
        beats.tell()
        if any_rank(must_stop(), device) if in_lockstep else must_stop():
            totals[2] = 1
            break
        tokens, targets = split(batch, device)
        num_tokens: int | Tensor = targets.numel()
        if ignored is not None:
            targets, num_tokens = mask(targets, ignored)
        with parallel.autocast():
            loss = module(tokens, targets)
        if counts:
            totals[0] += loss.double() * num_tokens
            totals[1] += num_tokens
    parallel.after_evaluation()
    module.train()
    return totals


def batches_of(
    samples: Samples | None, parallel: Parallelized, micro: int, limit: int | None
) -> Iterator[Batch]:
    """This rank's share of the samples, each of which counts once over all ranks.

    limit: batches per rank at most. Where a forward pass waits for the other ranks, whoever has
    fewer batches than another rank ends with one that does not count.
    """
    if samples is None:
        return
    rank, world_size = parallel.data_rank, parallel.data_world_size
    num = 0
    for batch in validation_batches(samples, micro, rank, world_size, limit):
        num += 1
        yield batch, True
    if parallel.in_lockstep and num < most_batches(samples, parallel, micro, limit):
        yield samples[np.zeros(1, np.int64)], False


def most_batches(
    samples: Samples | None, parallel: Parallelized, micro: int, limit: int | None
) -> int:
    """How many batches the rank with the most has, which is rank 0; see batches_of."""
    most = -(-len(samples or ()) // (parallel.data_world_size * micro))
    return most if limit is None else min(limit, most)
