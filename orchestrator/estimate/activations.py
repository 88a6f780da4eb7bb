"""What the passes of a micro-batch leave and need, in bytes, by the bundled GPT's own operations.

The same accounts as Korthikanti et al., "Reducing Activation Recomputation" (2022), section 4, but
for this model: no dropout masks without dropout, and attention that keeps no scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import ITEM_BYTES, Setting

FLOAT = 4  # bytes: of statistics of a norm, and of the loss


class Layer(NamedTuple):
    """Bytes of one block.

    Args:
        kept: what its forward pass leaves, the block's input included.
        again: what its backward pass computes first, where it is recomputed.
        perceptron: gradients in flight at the peak of the perceptron's backward pass.
        attention: the same of attention's, less what the perceptron's activations took.
    """

    kept: int
    again: int
    perceptron: int
    attention: int


class Head(NamedTuple):
    """Bytes after the last block.

    Args:
        kept: the last block's output, and its norm.
        logits: as the head computes them.
        floats: their copy in fp32; 0 where they are fp32.
        losses: log-probabilities, of which the loss is taken.
        stream: one gradient between blocks.
        working: what was seen beside activations at the peak, of a model that was looked at.
    """

    kept: int
    logits: int
    floats: int
    losses: int
    stream: int
    working: int = 0


class _Sizes(NamedTuple):
    """Bytes of one tensor of [B, T, C], or of what belongs to it.

    Args:
        stream: between blocks; computed: what matrices give; scores: of attention, that it keeps.
    """

    stream: float
    computed: float
    split: float
    statistics: float
    scores: float


def layer_of(setting: Setting, outline: Outline, block: int) -> Layer:
    """Return the figures of block `block` (from 0)."""
    if outline.working_bytes:
        return Layer(_seen(setting, outline.units[block].activation_bytes), 0, 0, 0)
    size, kind = _sizes(setting, outline), recomputing(setting, block)
    attention = size.stream + 3 * size.split + size.split + size.computed + size.scores
    attention += 2 * size.statistics
    perceptron = size.stream + size.computed + 8 * size.split + 2 * size.statistics
    masks = _masks(setting, outline, size)
    whole = attention + perceptron + 2 * masks
    # The result of the last matrix too, which the backward pass does not need.
    results = 8 * size.split + 2 * size.computed + size.scores
    kept = {"none": whole, "full": size.stream, "selective": size.stream + results}[kind]
    again = {"none": 0.0, "full": whole - size.stream, "selective": 0.0}[kind]
    if kind == "selective":
        again = 2 * (size.computed + size.statistics + masks) + size.stream + 4 * size.split
    flight = size.stream + (size.computed if size.computed != size.stream else 0)
    return Layer(
        kept=round(kept),
        again=round(again),
        perceptron=round(flight + 4 * size.split),
        attention=round(flight + 7 * size.split + size.stream - perceptron - masks),
    )


def head_of(setting: Setting, outline: Outline) -> Head:
    """Return the figures of what follows the last block."""
    if outline.working_bytes:
        kept = _seen(setting, outline.root.activation_bytes)
        return Head(kept, 0, 0, 0, 0, working=_seen(setting, outline.working_bytes))
    size, item = _sizes(setting, outline), ITEM_BYTES[setting.precision]
    numbers = setting.micro * setting.context * outline.vocab_size
    return Head(
        kept=round(size.stream + size.computed + 2 * size.statistics),
        logits=numbers * item,
        floats=0 if item == FLOAT else numbers * FLOAT,
        losses=numbers * FLOAT,
        stream=round(size.stream),
    )


def _seen(setting: Setting, by_format: Mapping[str, int]) -> int:
    """Bytes of all sequences of a micro-batch, as they were seen with one; fp16 is as bf16."""
    narrow = "autocast" if is_autocast(setting) else "bf16"
    number_format = "fp32" if setting.precision == "fp32" else narrow
    return setting.micro * by_format[f"{number_format}/none"]


def recomputing(setting: Setting, block: int) -> str:
    """Return the kind of checkpointing that block `block` (from 0) has."""
    every = setting.checkpointing_every
    return "none" if (block + 1) % every else setting.checkpointing


def is_autocast(setting: Setting) -> bool:
    """Whether the model has fp32 parameters of which operations make narrow copies."""
    return setting.precision != "fp32" and not setting.uses_fsdp


def _sizes(setting: Setting, outline: Outline) -> _Sizes:
    tokens, item = setting.micro * setting.context, ITEM_BYTES[setting.precision]
    stream = FLOAT if is_autocast(setting) else item
    statistics = tokens * FLOAT
    pairs = setting.micro * outline.heads * setting.context / setting.tensor
    scores = pairs * FLOAT
    if setting.attention == "math":  # scaled queries and keys, probabilities, a mask, what is left
        parts = 2 * item + 1 if outline.dropout else item
        scores = pairs * setting.context * parts + 2 * tokens * outline.width * item
    numbers = tokens * outline.width
    return _Sizes(
        numbers * stream,
        numbers * item,
        numbers * item / setting.tensor,
        statistics,
        scores,
    )


def _masks(setting: Setting, outline: Outline, size: _Sizes) -> float:
    """Of one dropout: a byte for each number."""
    return setting.micro * setting.context * outline.width if outline.dropout else 0.0
