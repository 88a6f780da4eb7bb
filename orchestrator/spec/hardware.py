"""What is known of a cluster's cards and links, for the planner: the profile's `hardware`."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from orchestrator import cards, rates, units
from orchestrator.errors import quoted
from orchestrator.spec.base import Part, Problem, Size, Text, TypeWords, problems_error
from orchestrator.spec.suggest import did_you_mean


def _reader(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse(value)
        except units.UnitError as error:
            raise problems_error([Problem((), error.message, error.fix)]) from None

    return BeforeValidator(read)


Rate = Annotated[
    float,
    _reader(rates.parse_rate),
    WithJsonSchema({"type": "string", "pattern": rates.RATE_PATTERN}),
    TypeWords(f"bandwidth ({rates.RATE_EXAMPLES})"),
]
"""Bytes per second; in the profile a text such as `450GB/s`."""

Flops = Annotated[
    float,
    _reader(rates.parse_flops),
    WithJsonSchema({"type": "string", "pattern": rates.FLOPS_PATTERN}),
    TypeWords(f"speed ({rates.FLOPS_EXAMPLES})"),
]
"""Operations per second; in the profile a text such as `989TFLOP/s`."""

Latency = Annotated[
    float,
    _reader(rates.parse_latency),
    WithJsonSchema({"type": "string", "pattern": rates.LATENCY_PATTERN}),
    TypeWords(f"short time ({rates.LATENCY_EXAMPLES})"),
]
"""Seconds; in the profile a text such as `5us`."""


class LinkFacts(Part):
    """A way between GPUs: by name, or by numbers, which win over those of the name."""

    link: Text | None = Field(default=None, description="Name in data/links.yaml.")
    bandwidth: Rate | None = Field(
        default=None,
        description="In one direction: of one GPU inside a node, of a whole node between nodes.",
    )
    latency: Latency | None = Field(default=None, description="Of one message.")

    @model_validator(mode="after")
    def _known(self) -> "LinkFacts":
        if self.link is not None and self.link not in cards.links():
            raise problems_error([_unknown("link", self.link, list(cards.links()))])
        if self.link is None and self.bandwidth is None:
            message = "neither link nor bandwidth is given"
            raise problems_error([Problem((), message, "add bandwidth: 50GB/s, or a link", "key")])
        return self


def _unknown(key: str, name: str, known: list[str]) -> Problem:
    close = did_you_mean(name, known)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"{quoted(name)} is not in the table"
    return Problem((key,), message, f"{hint}there are {', '.join(known)}")


class HardwareFacts(Part):
    """What a card can do and what it costs; what is not given is the card's, by its data sheet."""

    card: Text | None = Field(
        default=None,
        description="Name in data/cards.yaml; by default what resources.gpu_type says.",
    )
    gpu_memory: Size | None = Field(
        default=None, description="Memory of one GPU, or of one rank on a CPU."
    )
    peak: dict[Literal["fp32", "bf16", "fp16"], Flops] = Field(
        default_factory=dict,
        description="Operations per second of one rank by format, without sparsity, such as "
        "{bf16: 989TFLOP/s}.",
    )
    memory_bandwidth: Rate | None = Field(default=None, description="Of one GPU's memory.")
    utilisation: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of the peak that training reaches in computation; by default 0.4 in "
        "bf16 and fp16, 0.6 in fp32.",
    )
    inside: LinkFacts | None = Field(default=None, description="Between GPUs of a node.")
    between: LinkFacts | None = Field(default=None, description="Between nodes.")
    overlap: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Share of the computation behind which communication can hide; by default 1, "
        "and 0 on a CPU.",
    )
    context: Size | None = Field(
        default=None, description="Memory of a GPU that its context and libraries take."
    )
    host_bandwidth: Rate | None = Field(
        default=None,
        description="Between a GPU and its host's memory, in one direction; by default 25GB/s.",
    )
    unit_overhead: Latency | None = Field(
        default=None, description="Time of the host for each sharded unit and micro-batch."
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="In any currency; the plan's cost is in the same."
    )

    @model_validator(mode="after")
    def _known(self) -> "HardwareFacts":
        if self.card is not None and cards.card_of(self.card) is None:
            raise problems_error([_unknown("card", self.card, list(cards.cards()))])
        return self
