"""The model that is trained: a preset, sizes, or the user's own factory."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.errors import quoted
from orchestrator.spec.base import Part, Problem, Text, TypeWords
from orchestrator.spec.presets import PRESETS, ModelSizes

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
FACTORY_PATTERN = rf"^{_NAME}(\.{_NAME})*:{_NAME}$"
SIZES = ("layers", "heads", "width", "context")

PresetName = Literal["nano", "tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]


class Model(Part):
    """One of: a preset (sizes beside it refine it), all four sizes, or a factory."""

    preset: PresetName | None = Field(
        default=None,
        description="Sizes of the bundled GPT by name.",
    )
    layers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Transformer blocks of the bundled GPT; by default the preset's.",
    )
    heads: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Attention heads of each block; they divide the width; by default the "
        "preset's.",
    )
    width: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Features of each token; by default the preset's.",
    )
    context: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Tokens of one sequence; by default the preset's; needed with a factory, whose "
        "samples it sizes.",
    )
    vocab_size: int | None = Field(
        default=None,
        ge=2,
        le=100_000_000,
        description="Number of different tokens; by default what the data has (256 for bytes).",
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of activations dropped in training.",
    )
    tied: bool = Field(
        default=True,
        description="Use the token embedding as output layer too.",
    )
    factory: Annotated[str, Field(pattern=FACTORY_PATTERN), TypeWords("module:function")] | None = (
        Field(
            default=None,
            description="A function of yours, as package.module:function, that returns a module "
            "whose forward(tokens, targets) returns the loss. It is looked for in the job file's "
            "folder last.",
        )
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Keyword arguments for the factory.",
    )
    init: Text | None = Field(
        default=None,
        description="A safetensors file with the weights that a new run starts from, as "
        "`orchestrate-trainer export` writes it. A run that has a checkpoint goes on from that.",
    )

    @property
    def sizes(self) -> ModelSizes | None:
        """The bundled GPT's sizes, preset and refinements together; None with a factory."""
        if self.factory is not None:
            return None
        base = PRESETS[self.preset] if self.preset else None
        values = {name: getattr(self, name) or getattr(base, name, 0) for name in SIZES}
        return ModelSizes(**values)


def model_problems(model: Model) -> Iterator[Problem]:
    """Yield what is wrong between the keys of `train.model`, paths from there."""
    if model.factory is not None:
        yield from _factory_problems(model)
        return
    for name in model.given("args"):
        yield Problem(
            (name,), "arguments belong to a factory, and none is given", "remove it", "key"
        )
    yield from _size_problems(model)


def _factory_problems(model: Model) -> Iterator[Problem]:
    for name in model.given("preset", "layers", "heads", "width", "dropout", "tied"):
        yield Problem(
            (name,),
            "a factory makes the model by itself, so this would have no effect",
            f"remove it, or give it to the factory as args: {{{name}: ...}}",
            "key",
            involves=(("factory",),),
        )
    if model.context is None:
        yield Problem(
            (),
            "context is required with a factory: the number of tokens in one sample",
            "add the line `context: ...` here",
            "key",
            involves=(("context",), ("factory",)),
        )
    for name in model.args:
        if not name.isidentifier():
            yield Problem(("args", name), f"{quoted(name)} cannot be a keyword argument", "", "key")


def _size_problems(model: Model) -> Iterator[Problem]:
    missing = [name for name in SIZES if getattr(model, name) is None]
    if model.preset is None and len(missing) == len(SIZES):
        yield Problem(
            (),
            "no model is chosen",
            "give a preset such as `preset: nano`, or layers, heads, width and context, "
            "or a factory",
            "key",
            involves=(("preset",), ("factory",), *((name,) for name in SIZES)),
        )
    elif model.preset is None and missing:
        yield Problem(
            (),
            f"without a preset all four sizes are needed; missing: {', '.join(missing)}",
            "add them, or a preset whose sizes the others refine",
            "key",
            involves=(("preset",), ("factory",), *((name,) for name in SIZES)),
        )
    else:
        yield from _head_problems(model)


def _head_problems(model: Model) -> Iterator[Problem]:
    sizes = model.sizes
    if sizes is None or sizes.width % sizes.heads == 0:
        return
    near = (
        [n for n in range(1, sizes.width + 1) if sizes.width % n == 0] if sizes.width < 1e5 else []
    )
    near.sort(key=lambda n: (abs(n - sizes.heads), n))
    at = "heads" if model.heads is not None else "width"
    yield Problem(
        (at,),
        f"{sizes.heads} heads do not divide a width of {sizes.width}",
        f"take heads: {near[0]}, or a width that is a multiple of {sizes.heads}"
        if near
        else f"take a width that is a multiple of {sizes.heads}",
        involves=(("heads",), ("width",), ("preset",)),
    )
