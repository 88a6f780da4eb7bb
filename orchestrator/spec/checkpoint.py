"""When the state is saved, how, and what is kept."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from orchestrator import units
from orchestrator.errors import quoted
from orchestrator.spec.base import Part, Problem, TypeWords, problems_error
from orchestrator.spec.suggest import did_you_mean
from orchestrator.spec.train import MAX_STEPS

AUTO = "auto"
EVERY_FIX = "write a number of steps such as 100, a duration such as 15m, or auto"


def _every(value: object) -> int | str:
    """Return steps as they are, a duration in its one form, or auto."""
    if isinstance(value, str):
        return _every_text(value.strip())
    if isinstance(value, int) and not isinstance(value, bool):
        if 1 <= value <= MAX_STEPS:
            return value
        message = f"{str(value)[:40]} is no number of steps from 1 to {MAX_STEPS}"
        raise problems_error([Problem((), message, EVERY_FIX)])
    message, fix = "a number of steps, a duration or auto belongs here", EVERY_FIX
    if isinstance(value, float) and value.is_integer():
        message, fix = f"a whole number of steps belongs here, not {value}", f"write {int(value)}"
    raise problems_error([Problem((), message, fix)])


def _every_text(text: str) -> str:
    if text == AUTO:
        return text
    steps = re.fullmatch(r"(\d[\d_,]{0,17})\s*(steps?)?", text, re.ASCII)
    if steps:
        number = int(re.sub("[_,]", "", steps[1]))
        message = f"a whole number of steps belongs here, not {quoted(text)}"
        raise problems_error([Problem((), message, f"write {number}, or a duration such as 15m")])
    try:
        return units.format_duration(units.parse_duration(text))
    except units.UnitError as error:
        raise problems_error([_text_problem(text, error)]) from None


def _text_problem(text: str, error: units.UnitError) -> Problem:
    """What a text is told that is no duration: as one if it begins with a number."""
    if text[:1].isdecimal():
        return Problem((), error.message, error.fix)
    fix = f'did you mean "{AUTO}"?' if did_you_mean(text, [AUTO]) else EVERY_FIX
    return Problem((), f"{quoted(text)} is no number of steps, no duration and not auto", fix)


Every = Annotated[
    int | str,
    BeforeValidator(_every),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_STEPS},
                {"type": "string", "pattern": units.DURATION_PATTERN},
                {"const": AUTO},
            ]
        }
    ),
    TypeWords("number of steps, duration such as 15m, or auto"),
]
"""Steps as a number; a duration as format_duration writes it, or `auto`, as a text."""


class Checkpoint(Part):
    """When the state is saved, and what is kept."""

    every: Every = Field(
        default=100,
        description="Steps between checkpoints, or the time between them; auto takes the time that "
        "loses least, from what a checkpoint costs and how often the cluster's nodes fail. One "
        "more is written at the end and before a stop.",
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=100_000,
        description="How many of the newest whole checkpoints are kept.",
    )
    keep_best: bool = Field(
        default=True,
        description="Keep the one with the lowest validation loss as well.",
    )
    format: Literal["auto", "full", "sharded", "both"] = Field(
        default="auto",
        description="Layout on disk. full: whole tensors, written by rank 0. sharded: each rank "
        "writes its part (torch.distributed.checkpoint). auto is sharded where the strategy shards "
        "the state, full elsewhere. Any layout is read under any strategy and number of ranks.",
    )
    # `async` in the job file, a word of Python's own.
    asynchronous: bool = Field(
        default=False,
        alias="async",
        description="Write while training goes on; costs a copy of the state in the CPU's memory.",
    )
    on_failure: Literal["stop", "continue"] = Field(
        default="stop",
        description="What follows where a checkpoint cannot be written: stop ends the attempt; "
        "continue trains on until the next one is due. The last one must be written all the same.",
    )
    resume: Literal["auto", "never"] = Field(
        default="auto",
        description="auto continues from the newest whole checkpoint if there is one; never starts "
        "anew.",
    )
