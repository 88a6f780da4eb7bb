"""A GPT to be read, and the user's own model by factory.

Shapes in comments: B sequences, T tokens each, C the width, H heads, V the vocabulary.
"""

from __future__ import annotations

import importlib
import math
import traceback
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.config import ModelConfig, TrainerConfig
from trainer.contract import ConfigurationError

# Standard deviation of the initial weights, and 1/sqrt(2 * layers) for what ends a residual branch:
# Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3, with
# the value of the code released with it.
INIT_STD = 0.02

# What these say about a user's code would be said again at the next attempt; other errors (no
# connection, no memory) may pass.
LASTING_ERRORS = (
    ImportError, AttributeError, TypeError, ValueError, LookupError, SyntaxError, NameError,
)  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention with H heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.inward = nn.Linear(config.width, 3 * config.width)
        self.outward = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over earlier positions: [B, T, C] to [B, T, C]."""
        b, t, c = x.shape
        qkv = self.inward(x).view(b, t, 3, self.heads, c // self.heads)  # [B, T, 3, H, C/H]
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, H, T, C/H]
        rate = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, c)  # [B, T, C]
        return cast(Tensor, self.outward(y))


class Block(nn.Module):
    """Attention and a perceptron, each behind its norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_inward = nn.Linear(config.width, 4 * config.width)
        self.mlp_outward = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = functional.gelu(self.mlp_inward(self.mlp_norm(x)), approximate="tanh")  # [B,T,4C]
        return cast(Tensor, x + self.dropout(self.mlp_outward(hidden)))


class GPT(nn.Module):
    """Decoder-only transformer with learned positions and, by default, a tied head."""

    def __init__(self, config: ModelConfig, vocab_size: int, recompute: bool = False) -> None:
        super().__init__()
        self.context = config.context
        self.recompute = recompute  # activation checkpointing of each block
        self.token = nn.Embedding(vocab_size, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        _initialize(self, config.layers)
        if config.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean loss in nats per token, or the logits [B, T, V] when there are no targets.

        tokens and targets are int64 [B, T] with T at most the context.
        """
        t = tokens.shape[1]
        x = self.dropout(self.token(tokens) + self.position.weight[:t])  # [B, T, C]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = self.head(self.norm(x))  # [B, T, V]
        if targets is None:
            return cast(Tensor, logits)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _initialize(model: nn.Module, layers: int) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
        if isinstance(module, nn.Linear):
            divisor = math.sqrt(2 * layers) if name.endswith("outward") else 1.0
            nn.init.normal_(module.weight, std=INIT_STD / divisor)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def build_model(config: TrainerConfig, vocab_size: int) -> nn.Module:
    """The GPT, or what the factory returns; on the CPU, with weights from torch's random state.

    A factory's module is called as module(tokens, targets), both int64 [B, T], and returns the mean
    loss over the batch, a scalar. Raises ConfigurationError for a factory that cannot be used.
    """
    recompute = config.activation_checkpointing == "full"
    if config.model.factory is None:
        return GPT(config.model, vocab_size, recompute)
    if recompute:
        raise ConfigurationError(
            "parallelism.activation_checkpointing: full is for the built-in model; call"
            " torch.utils.checkpoint inside the model of train.model.factory instead"
        )
    return _call_factory(config.model.factory, config.model.args)


def _call_factory(factory: str, args: dict[str, Any]) -> nn.Module:
    module_name, _, function = factory.partition(":")
    try:
        model = getattr(importlib.import_module(module_name), function)(**args)
    except LASTING_ERRORS as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigurationError(
            f"train.model.factory: {factory} failed with {type(error).__name__}: {error} "
            f"({last.filename}:{last.lineno}); it must be 'package.module:function', importable "
            "from the folder of the job file, and take train.model.args"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"train.model.factory: {factory} returned {type(model).__name__}; "
            "it must return a torch.nn.Module"
        )
    return model


def flops_per_token(model: nn.Module, config: ModelConfig) -> float | None:
    """Floating-point operations of training per token; None for a model that is not the GPT.

    6 N + 12 L C T: Chowdhery et al., "PaLM" (2022), appendix B.
    """
    if not isinstance(model, GPT):
        return None
    parameters = sum(p.numel() for p in model.parameters()) - model.position.weight.numel()
    return 6.0 * parameters + 12.0 * config.layers * config.width * config.context


@torch.no_grad()
def generate(model: GPT, prompt: Tensor, num_tokens: int, seed: int) -> Tensor:
    """`num_tokens` further tokens, int64 [num_tokens], drawn at temperature 1.

    prompt is int64 [T] with at least one token. The draw has its own random state, so that
    training's is not touched.
    """
    was_training = model.training
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    tokens = prompt
    for _ in range(num_tokens):
        logits = model(tokens[-model.context :].unsqueeze(0))[0, -1]  # [V]
        probabilities = functional.softmax(logits.float().cpu(), dim=0)
        drawn = torch.multinomial(probabilities, 1, generator=draw)  # [1]
        tokens = torch.cat([tokens, drawn.to(tokens.device)])
    model.train(was_training)
    return tokens[len(prompt) :]
