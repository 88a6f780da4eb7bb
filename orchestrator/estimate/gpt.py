"""The bundled GPT's outline, from its sizes; the names and shapes of trainer/model.py."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.estimate.outline import Outline, Parameter, Unit
from orchestrator.spec.presets import ModelSizes


def gpt_outline(sizes: ModelSizes, vocab_size: int, tied: bool, dropout: float) -> Outline:
    """Return the outline of the bundled GPT, each block a unit of its own.

    Args:
        vocab_size: number of different tokens.
        tied: whether the token embedding is the output layer too; it counts once.
        dropout: share of activations dropped in training.
    """
    root = Unit("", tuple(_root(sizes, vocab_size, tied)))
    units = tuple(
        Unit(f"blocks.{layer}", tuple(_block(f"blocks.{layer}", sizes.width)))
        for layer in range(sizes.layers)
    )
    counted = root.numel + sum(unit.numel for unit in units) - sizes.context * sizes.width
    return Outline(
        units=units,
        root=root,
        layers=sizes.layers,
        heads=sizes.heads,
        width=sizes.width,
        vocab_size=vocab_size,
        dropout=dropout,
        # Chowdhery et al., "PaLM" (2022), appendix B, without the positions, which are looked up.
        flops_per_token=6.0 * counted + 12.0 * sizes.layers * sizes.width * sizes.context,
    )


def _root(sizes: ModelSizes, vocab_size: int, tied: bool) -> Iterator[Parameter]:
    """The root's parameters, in the order in which torch names them."""
    yield Parameter("token.weight", (vocab_size, sizes.width))
    yield Parameter("position.weight", (sizes.context, sizes.width))
    yield from _norm("norm", sizes.width)
    if not tied:
        yield Parameter("head.weight", (vocab_size, sizes.width))


def _block(name: str, width: int) -> Iterator[Parameter]:
    """Tensor parallelism splits what goes inward by its results, what goes outward by its inputs.

    The bias of the latter is added after the sum over ranks, so each has it whole.
    """
    yield from _norm(f"{name}.attention_norm", width)
    yield from _inward(f"{name}.attention.inward", 3 * width, width)
    yield from _outward(f"{name}.attention.outward", width, width)
    yield from _norm(f"{name}.mlp_norm", width)
    yield from _inward(f"{name}.mlp_inward", 4 * width, width)
    yield from _outward(f"{name}.mlp_outward", width, 4 * width)


def _norm(name: str, width: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (width,))
    yield Parameter(f"{name}.bias", (width,))


def _inward(name: str, results: int, inputs: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (results, inputs), split=0)
    yield Parameter(f"{name}.bias", (results,), split=0)


def _outward(name: str, results: int, inputs: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (results, inputs), split=1)
    yield Parameter(f"{name}.bias", (results,))
