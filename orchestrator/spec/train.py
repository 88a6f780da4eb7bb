"""What is trained, on which data, and how."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.spec.base import Betas, Fraction, Part, Paths, Problem, Text, TypeWords, section
from orchestrator.spec.model import Model, model_problems

MAX_STEPS = 10**9
NUM_SKIPS = 3
BYTE_TOKENS = 256  # different tokens of data that is read as bytes
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


class Optimizer(Part):
    """AdamW and the clipping of gradients."""

    lr: Annotated[float, Field(gt=0, le=100)] = Field(
        default=3e-4,
        description="Highest learning rate.",
    )
    betas: Betas = Field(default=(0.9, 0.95), description="AdamW's betas.")
    eps: Annotated[float, Field(gt=0, le=1)] = Field(default=1e-8, description="AdamW's epsilon.")
    weight_decay: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.1,
        description="Weight decay of matrices; vectors have none.",
    )
    clip_norm: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="Longest gradient over all parameters; 0 for no clipping.",
    )


class Schedule(Part):
    """How the learning rate goes over the steps."""

    warmup_steps: int = Field(
        default=0,
        ge=0,
        le=MAX_STEPS,
        description="Steps in which the learning rate rises from 0.",
    )
    kind: Literal["cosine", "constant"] = Field(
        default="cosine",
        description="What follows the warm-up.",
    )
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1,
        description="Where the cosine ends, as a share of lr.",
    )


class Batch(Part):
    """How many sequences make one step."""

    micro: int = Field(
        default=8,
        ge=1,
        le=1_000_000,
        description="Sequences of each rank in one forward pass.",
    )
    accumulation: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Forward and backward passes of each rank before one optimizer step.",
    )


class Evaluation(Part):
    """When the validation loss is computed."""

    every: int | None = Field(
        default=None,
        ge=1,
        le=MAX_STEPS,
        description="Steps between evaluations; by default only at the start and at the end.",
    )
    batches: int | None = Field(
        default=None,
        ge=1,
        le=MAX_STEPS,
        description="Batches of each rank in one evaluation; by default all validation data.",
    )


class Nonfinite(Part):
    """What happens to a step whose loss or gradient is not finite; it never changes the weights."""

    policy: Literal["stop", "skip"] = Field(
        default="stop",
        description="stop ends the attempt and names step and rank; skip leaves the step out.",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Steps in a row that skip may leave out before it stops; 3 by default.",
    )

    @property
    def num_skips(self) -> int:
        """Steps in a row that may be left out, default filled in; 0 under stop."""
        return 0 if self.policy == "stop" else self.limit or NUM_SKIPS


class Logging(Part):
    """What is written about the progress."""

    every: int = Field(
        default=10,
        ge=1,
        le=MAX_STEPS,
        description="Steps between lines of metrics.",
    )
    tensorboard: bool = Field(
        default=True,
        description="Write TensorBoard files as well, where it is installed.",
    )
    samples: bool = Field(
        default=False,
        description="Write the numbers of the samples that each rank has trained on.",
    )


class Train(Part):
    """The bundled trainer's work."""

    model: Model = Field(description="The model: a preset, sizes, or a factory of yours.")
    data: Data = Field(description="What it learns from.")
    optimizer: Optimizer = section("AdamW and clipping.")
    schedule: Schedule = section("The learning rate over the steps.")
    batch: Batch = section("How many sequences make one step.")
    steps: int = Field(
        ge=1,
        le=MAX_STEPS,
        description="Optimizer steps of the whole run, over all attempts.",
    )
    evaluation: Evaluation = section("When the validation loss is computed.")
    seed: int = Field(
        default=1337,
        ge=0,
        lt=2**32,
        description="Seed of weights, order of the data and dropout.",
    )
    nonfinite: Nonfinite = section("What happens to a step that is not finite.")
    logging: Logging = section("What is written about the progress.")
    compile: bool = Field(
        default=False,
        description="Compile the model with torch.compile.",
    )


def train_problems(train: Train) -> Iterator[Problem]:
    """Yield what is wrong between the keys of `train`, paths from there."""
    yield from (p.under(("model",)) for p in model_problems(train.model))
    yield from (p.under(("data",)) for p in _data_problems(train.data))
    warmup = train.schedule.warmup_steps
    if warmup >= train.steps:
        yield Problem(
            ("schedule", "warmup_steps"),
            f"{warmup} warm-up steps leave none of the {train.steps} steps for training",
            f"take fewer than {train.steps}",
            involves=(("steps",),),
        )
    if train.nonfinite.policy == "stop" and train.nonfinite.given("limit"):
        yield Problem(
            ("nonfinite", "limit"),
            "goes with policy: skip only; stop allows no step that is not finite",
            "remove it, or write policy: skip",
            "key",
            involves=(("nonfinite", "policy"),),
        )
    yield from _ignore_token_problems(train)


def _ignore_token_problems(train: Train) -> Iterator[Problem]:
    data, size = train.data, train.model.vocab_size
    if size is None and (data.python_docs or data.text) and not data.tokenizer:
        size = BYTE_TOKENS
    if data.ignore_token is not None and size is not None and data.ignore_token >= size:
        yield Problem(
            ("data", "ignore_token"),
            f"there are {size} different tokens, so none has the number {data.ignore_token}",
            f"take a number from 0 to {size - 1}",
            involves=(("model", "vocab_size"), ("data", "tokenizer")),
        )


def _data_problems(data: Data) -> Iterator[Problem]:
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
