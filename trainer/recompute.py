"""Activation checkpointing: what a block computes again in the backward pass, to save memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer.config import ParallelismConfig

_ATEN = torch.ops.aten
# Matrix products and attention: most of the time of a forward pass, and a small part of its
# activations. Their results are kept by `selective`, and all else is computed again.
KEPT = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
]

Body = Callable[[Tensor], Tensor]
Runner = Callable[[Body, Tensor], Tensor]


def recomputed(body: Body, x: Tensor) -> Tensor:
    """body(x), with all of it computed again in the backward pass."""
    return _checkpoint(body, x)


def selectively_recomputed(body: Body, x: Tensor) -> Tensor:
    """body(x), with all but the results of KEPT computed again in the backward pass."""
    contexts = functools.partial(create_selective_checkpoint_contexts, KEPT)
    return _checkpoint(body, x, context_fn=contexts)


def _checkpoint(body: Body, x: Tensor, **options: Any) -> Tensor:
    # Not reentrant: the other kind marks a parameter ready twice, or not at all, under DDP.
    result: Tensor = checkpoint(body, x, use_reentrant=False, **options)
    return result


def runner_of(block: int, parallelism: ParallelismConfig) -> Runner | None:
    """What runs the body of block `block` (from 0); None: nothing is computed again."""
    kind = parallelism.activation_checkpointing
    if kind == "none" or (block + 1) % parallelism.activation_checkpointing_every:
        return None
    return recomputed if kind == "full" else selectively_recomputed
