"""The cases of which peaks are compared: sizes, strategies, checkpointing, precision."""

from __future__ import annotations

from typing import Any

from forecasts import Forecast
from orchestrator.spec.presets import ModelSizes

# Blocks outweigh the rest; the vocabulary does; activations do.
BLOCKS = (ModelSizes(layers=6, heads=4, width=256, context=64), 500)
WORDS = (ModelSizes(layers=3, heads=4, width=128, context=128), 4000)
TOKENS = (ModelSizes(layers=4, heads=8, width=64, context=512), 500)

BF16: dict[str, Any] = {"precision": "bf16"}
FULL: dict[str, Any] = {"activation_checkpointing": "full"}
SELECTIVE: dict[str, Any] = {"activation_checkpointing": "selective"}
SECOND = {**FULL, "activation_checkpointing_every": 2}
FSDP1 = {"fsdp__version": 1}
GROUP = {"shard_group": 2}
EACH = {"gradient_sync": "each"}

GRID = [
    Forecast("ddp", *BLOCKS),
    Forecast("ddp", *WORDS, BF16),
    Forecast("ddp", *TOKENS, FULL),
    Forecast("ddp", *TOKENS, {**BF16, **SELECTIVE}),
    Forecast("ddp", *BLOCKS, {"ddp__gradient_as_bucket_view": False}),
    Forecast("ddp", *WORDS, accumulation=2),
    Forecast("no_shard", *WORDS, FULL, tied=False),
    Forecast("full_shard", *BLOCKS),
    Forecast("full_shard", *WORDS, {**BF16, **SELECTIVE}),
    Forecast("full_shard", *TOKENS, SECOND, micro=4),
    Forecast("full_shard", *BLOCKS, {**BF16, **FULL}, num_ranks=64),
    Forecast("full_shard", *WORDS, tied=False),
    Forecast("full_shard", *BLOCKS, accumulation=3),
    Forecast("full_shard", *BLOCKS, EACH, accumulation=3),
    Forecast("full_shard", *TOKENS, {"tensor": 2, **BF16}),
    Forecast("full_shard", *BLOCKS, {"fsdp__reshard_after_forward": 2}),
    Forecast("shard_grad_op", *TOKENS, SELECTIVE),
    Forecast("shard_grad_op", *BLOCKS, {**BF16, "reductions": "bf16"}),
    Forecast("hybrid_shard", *BLOCKS, {**BF16, **GROUP}),
    Forecast("hybrid_shard", *TOKENS, {**FULL, **GROUP}, num_ranks=16),
    Forecast("full_shard", *BLOCKS, FSDP1),
    Forecast("shard_grad_op", *WORDS, {**FSDP1, **BF16}),
    Forecast("no_shard", *TOKENS, {**FSDP1, **SELECTIVE}),
    Forecast("hybrid_shard", *WORDS, {**FSDP1, **GROUP, **BF16, **FULL}),
]
# Of the grid: those that go with each merge; one for each way to spread a model.
SHORT = [GRID[number] for number in (1, 2, 8, 13, 16, 20)]
