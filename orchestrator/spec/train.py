"""What is trained, and how."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.spec.base import Betas, Part, Problem, section
from orchestrator.spec.data import Data, data_problems
from orchestrator.spec.model import Model, model_problems

MAX_STEPS = 10**9
NUM_SKIPS = 3
BYTE_TOKENS = 256  # different tokens of data that is read as bytes


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
    traffic: bool = Field(
        default=False,
        description="Count the bytes of the collectives that really run, in two steps.",
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
    yield from (p.under(("data",)) for p in data_problems(train.data))
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
