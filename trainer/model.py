"""A GPT to be read, and the user's own model by factory.

Shapes in comments: B sequences, T tokens each, C the width, H heads, V the vocabulary.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import traceback
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import ModelConfig, TrainerConfig
from trainer.contract import ConfigurationError
from trainer.materialize import materialize
from trainer.recompute import Runner, runner_of

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
    """Causal self-attention with H heads, or with some of them where ranks split the heads.

    The rows of `inward` are ordered by head, and within a head by query, key and value, so that a
    part of the rows is some heads with all that belongs to them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.dropout = config.dropout
        self.inward = nn.Linear(config.width, 3 * config.width)
        self.outward = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over earlier positions: [B, T, C] to [B, T, C]."""
        b, t, _ = x.shape
        qkv = self.inward(x).view(b, t, -1, 3, self.head_width)  # [B, T, H, 3, C/H]
        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)  # each [B, H, T, C/H]
        rate = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, -1)  # [B, T, C]
        return cast(Tensor, self.outward(y))


class Block(nn.Module):
    """Attention and a perceptron, each behind its norm and added to the residual stream.

    recompute: runs the block's body with activation checkpointing; None keeps all activations.
    """

    def __init__(self, config: ModelConfig, recompute: Runner | None = None) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_inward = nn.Linear(config.width, 4 * config.width)
        self.mlp_outward = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        return self._body(x) if self.recompute is None else self.recompute(self._body, x)

    def _body(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = functional.gelu(self.mlp_inward(self.mlp_norm(x)), approximate="tanh")  # [B,T,4C]
        return cast(Tensor, x + self.dropout(self.mlp_outward(hidden)))


class GPT(nn.Module):
    """Decoder-only transformer with learned positions and, by default, a tied head.

    Its first weights are those of `first_value`, which whoever builds it puts in.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, runners: Sequence[Runner | None] = ()
    ) -> None:
        """runners: what recomputes each block; none for no block."""
        super().__init__()
        runners = runners or [None] * config.layers
        self.context = config.context
        self.token = nn.Embedding(vocab_size, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, runner) for runner in runners)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean loss in nats per token, or the logits [B, T, V] when there are no targets.

        tokens and targets are int64 [B, T] with T at most the context. Targets of -100 don't count.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)  # [T]
        # Called, not indexed: only a call gathers the weights of a module that is sharded alone.
        x = self.dropout(self.token(tokens) + self.position(places))  # [B, T, C]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))  # [B, T, V]
        if targets is None:
            return cast(Tensor, logits)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def first_value(name: str, shape: torch.Size, layers: int, seed: int) -> Tensor:
    """The value that a parameter of the GPT starts from, on the CPU, in fp32.

    It depends on the arguments alone, so that any rank can make any parameter, one at a time.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    divisor = math.sqrt(2 * layers) if name.endswith("outward.weight") else 1.0
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    draw = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(shape).normal_(std=INIT_STD / divisor, generator=draw)


def build_hollow(config: TrainerConfig, vocab_size: int) -> nn.Module:
    """The GPT, or what the factory returns, on the meta device: shapes without memory.

    Whatever a factory raises goes to the caller: not every model can be made so.
    """
    with torch.device("meta"):
        return _construct(config, vocab_size)


def build_whole(config: TrainerConfig, vocab_size: int) -> nn.Module:
    """The GPT with its first weights, or what the factory returns, on the CPU.

    A factory draws from torch's random state. Its module is called as module(tokens, targets), both
    int64 [B, T], and returns the mean loss over the batch, a scalar. Raises ConfigurationError for
    a factory that cannot be used.
    """
    if config.model.factory is not None:
        return _construct(config, vocab_size)
    model = build_hollow(config, vocab_size)
    materialize(model, torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = first_value(name, parameter.shape, config.model.layers, config.seed)
            parameter.copy_(value)
    return model


def compile_blocks(model: nn.Module) -> None:
    """Have torch.compile take the GPT block by block, equal ones once; another model as a whole."""
    if not isinstance(model, GPT):
        model.compile()
        return
    # What would cut a graph at DDP's buckets; between blocks it is cut already, and with small
    # buckets it fails.
    torch._dynamo.config.optimize_ddp = False
    for block in model.blocks:
        block.compile()


def _construct(config: TrainerConfig, vocab_size: int) -> nn.Module:
    if config.model.factory is not None:
        return call_factory(config.model.factory, config.model.args)
    runners = [runner_of(block, config.parallelism) for block in range(config.model.layers)]
    return GPT(config.model, vocab_size, runners)


def call_factory(factory: str, args: dict[str, Any]) -> nn.Module:
    """What a user's function returns. Raises ConfigurationError for what would fail again."""
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
def generate(model: nn.Module, prompt: Tensor, num_tokens: int, seed: int) -> Tensor:
    """`num_tokens` further tokens, int64 [num_tokens], drawn at temperature 1.

    model: the GPT, spread over ranks or not. prompt is int64 [T] with at least one token. The draw
    has its own random state, so that training's is not touched.
    """
    was_training = model.training
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    tokens, context = prompt, int(cast(int, model.context))
    for _ in range(num_tokens):
        logits = model(tokens[-context:].unsqueeze(0))[0, -1]  # [V]
        probabilities = functional.softmax(logits.float().cpu(), dim=0)
        drawn = torch.multinomial(probabilities, 1, generator=draw)  # [1]
        tokens = torch.cat([tokens, drawn.to(tokens.device)])
    model.train(was_training)
    return tokens[len(prompt) :]
