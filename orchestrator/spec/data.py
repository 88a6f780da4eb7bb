"""What a model learns from, and what it is judged by."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.spec.base import Fraction, Part, Paths, Problem, Text, TypeWords, section

SOURCES = ("text", "tokens", "synthetic", "python_docs")


class Synthetic(Part):
    """Made-up tokens, for tests of speed."""

    samples: int = Field(
        ge=1,
        le=10**12,
        description="Number of made-up sequences.",
    )


class Validation(Part):
    """What the model is judged by."""

    fraction: Fraction = Field(
        default=0.1,
        description="Last part of the data that is kept for validation, if no files are given; 0 "
        "for none.",
    )
    text: Paths | None = Field(
        default=None,
        description="Text files for validation, in place of a fraction.",
    )
    tokens: Paths | None = Field(
        default=None,
        description="Token files for validation, in place of a fraction.",
    )


class Data(Part):
    """One of text, tokens, synthetic and python_docs."""

    text: Paths | None = Field(
        default=None,
        description="Text files, read as bytes or through a tokenizer; relative to the job file's "
        "folder.",
    )
    tokens: Paths | None = Field(
        default=None,
        description="Files of token numbers without a header, mapped into memory.",
    )
    synthetic: Synthetic | None = Field(
        default=None, description="Made-up tokens, for tests of speed."
    )
    python_docs: Annotated[Literal[True], TypeWords("true")] | None = Field(
        default=None,
        description="The documentation topics that come with every CPython (module "
        "pydoc_data.topics): real text without a download.",
    )
    tokenizer: Text | None = Field(
        default=None,
        description="A tokenizer.json of Hugging Face's tokenizers for text; by default each byte "
        "is a token.",
    )
    dtype: Literal["uint16", "uint32"] = Field(
        default="uint16",
        description="Number format of token files.",
    )
    ignore_token: int | None = Field(
        default=None,
        ge=0,
        lt=2**32,
        description="Number of the token that fills up short samples: its prediction counts "
        "neither in the loss nor in the gradient.",
    )
    validation: Validation = section("What the model is judged by.")
    workers: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Processes of each rank that load data; 0 loads in the rank itself.",
    )

    @property
    def kind(self) -> str:
        """Which source was chosen: text, tokens, synthetic or python_docs."""
        return next(name for name in SOURCES if getattr(self, name) is not None)


def data_problems(data: Data) -> Iterator[Problem]:
    """Yield what is wrong between the keys of `train.data`, paths from there."""
    chosen = data.given(*SOURCES)
    sources = tuple((name,) for name in SOURCES)
    if not chosen:
        yield Problem(
            (),
            "no data is chosen",
            "give one of text, tokens, synthetic and python_docs, such as `python_docs: true`",
            "key",
            involves=sources,
        )
    for name in chosen[1:]:
        yield Problem(
            (name,),
            f"there is {chosen[0]} already, and only one of {', '.join(SOURCES)} can be used",
            f"remove {name} or {chosen[0]}",
            "key",
            involves=sources,
        )
    if len(chosen) == 1:
        yield from _companion_problems(data, chosen[0])


def _companion_problems(data: Data, chosen: str) -> Iterator[Problem]:
    for name, source in (("tokenizer", "text"), ("dtype", "tokens")):
        if chosen != source and data.given(name):
            yield Problem(
                (name,), f"goes with {source} only, not with {chosen}", "remove it", "key"
            )
    files = data.validation.given("text", "tokens")
    for name in files:
        if name != chosen:
            yield Problem(
                ("validation", name),
                f"the training data is {chosen}, so validation cannot be {name}",
                f"give validation.{chosen}" if chosen in ("text", "tokens") else "use fraction",
                "key",
            )
    if files and data.validation.given("fraction"):
        yield Problem(
            ("validation", "fraction"),
            "validation files are given, so no fraction of the training data is kept for it",
            f"remove fraction or {files[0]}",
            "key",
        )
