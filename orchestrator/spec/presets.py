"""Sizes of the bundled GPT by name. No torch here: the launcher knows them without it."""

from __future__ import annotations

from typing import NamedTuple


class ModelSizes(NamedTuple):
    """What gives a GPT its size.

    Args:
        layers: number of transformer blocks.
        heads: attention heads in each block; divides width.
        width: features of one token.
        context: longest sequence, in tokens.
    """

    layers: int
    heads: int
    width: int
    context: int


# gpt2 and larger: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
# table 2, with the head counts of the released checkpoints.
PRESETS = {
    "nano": ModelSizes(layers=2, heads=2, width=64, context=64),
    "tiny": ModelSizes(layers=4, heads=4, width=128, context=128),
    "small": ModelSizes(layers=6, heads=6, width=384, context=256),
    "gpt2": ModelSizes(layers=12, heads=12, width=768, context=1024),
    "gpt2-medium": ModelSizes(layers=24, heads=16, width=1024, context=1024),
    "gpt2-large": ModelSizes(layers=36, heads=20, width=1280, context=1024),
    "gpt2-xl": ModelSizes(layers=48, heads=25, width=1600, context=1024),
}
