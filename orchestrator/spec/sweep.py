"""Many runs from one job file: which keys differ, and with which values."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from orchestrator.errors import quoted
from orchestrator.spec.base import KeyPath, Part, Problem, TypeWords, as_tuple, problems_error

if TYPE_CHECKING:
    from orchestrator.spec.job import JobSpec

# Slurm takes indices below 1001 where the site has not set MaxArraySize, slurm.conf(5).
MAX_ELEMENTS = 1000
# What ends in trainer.json and leaves the shape of the job alone: one batch script serves all.
SECTIONS = ("train", "parallelism", "checkpoint")
KEY_PATTERN = rf"({'|'.join(SECTIONS)})(\.[^.\[\]]+)+"


class Choice(NamedTuple):
    """One value of one element.

    Args:
        key: with dots, such as `train.optimizer.lr`.
        value: in the job file's form.
        path: where it is written, from the section `sweep`.
    """

    key: str
    value: Any
    path: KeyPath


def _values(value: object) -> object:
    if not isinstance(value, (list, tuple)) or not value:
        message = "a list of values belongs here, with at least one"
        fix = "write it in brackets, such as train.optimizer.lr: [0.001, 0.01]; keys have dots"
        raise problems_error([Problem((), message, fix)])
    return tuple(value)


def _key_problem(key: str) -> Problem | None:
    if re.fullmatch(KEY_PATTERN, key):
        return None
    allowed = ", ".join(f"{section}.*" for section in SECTIONS)
    return Problem(
        (key,),
        f"{quoted(key)} cannot differ within a sweep: it is no key of the trainer ({allowed})",
        "write a whole key with dots, such as train.optimizer.lr; for other keys submit one job "
        "for each value, with --set",
        "key",
    )


def _check_keys(values: dict[str, Any]) -> dict[str, Any]:
    problems = [problem for key in values if (problem := _key_problem(key))]
    if problems:
        raise problems_error(problems)
    return values


def _check_entry(values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        fix = "give at least one key with its value, such as train.seed: 2"
        raise problems_error([Problem((), "an element without values", fix)])
    return _check_keys(values)


Values = Annotated[tuple[Any, ...], BeforeValidator(_values)]
Entry = Annotated[dict[str, Any], AfterValidator(_check_entry)]


# What an element takes from each axis of the product.
Axes = list[list[tuple[Choice, ...]]]


class Sweep(Part):
    """Elements numbered from 0, each a run of its own with other values of some keys."""

    grid: Annotated[dict[str, Values], AfterValidator(_check_keys)] = Field(
        default_factory=dict,
        description="Key with dots to a list of values: one element for each combination, the last "
        "key changes fastest. Keys below train, parallelism and checkpoint.",
    )
    list: Annotated[
        tuple[Entry, ...],
        BeforeValidator(as_tuple),
        WithJsonSchema({"type": "array", "items": {"type": "object", "minProperties": 1}}),
        TypeWords("list of maps from key to value"),
    ] = Field(
        default=(),
        description="Maps from key to value, an element each. With grid as well: each combination "
        "with each of these.",
    )
    at_once: Annotated[int, Field(ge=1, le=MAX_ELEMENTS)] | None = Field(
        default=None,
        description="How many elements run at once at most. Without it a scheduler may run all, "
        "and this machine runs one.",
    )

    @property
    def num_elements(self) -> int:
        """How many there are; 0 if neither `grid` nor `list` names any."""
        if not self.grid and not self.list:
            return 0
        return math.prod(map(len, self.grid.values())) * (len(self.list) or 1)

    def elements(self) -> Iterator[tuple[Choice, ...]]:
        """Yield the values of each element, in their order."""
        axes: Axes = [
            [(Choice(key, value, ("grid", key, i)),) for i, value in enumerate(values)]
            for key, values in self.grid.items()
        ]
        if self.list:
            axes.append([_choices(number, entry) for number, entry in enumerate(self.list)])
        for parts in itertools.product(*axes):
            yield tuple(itertools.chain(*parts))


def _choices(number: int, entry: dict[str, Any]) -> tuple[Choice, ...]:
    return tuple(Choice(key, value, ("list", number, key)) for key, value in entry.items())


def sweep_problems(spec: "JobSpec") -> Iterator[Problem]:
    """Yield what is wrong with the sweep as a whole, with paths from the root."""
    sweep = spec.sweep
    if sweep is None:
        return
    if not 1 <= sweep.num_elements <= MAX_ELEMENTS:
        yield Problem(
            ("sweep",),
            f"it has {sweep.num_elements} elements; allowed are 1 to {MAX_ELEMENTS}",
            "shorten its lists" if sweep.num_elements else "add grid or list, or remove sweep",
            "key",
            involves=(("sweep", "grid"), ("sweep", "list")),
        )
    if spec.launcher == "submitit":
        yield Problem(
            ("sweep",),
            "launcher: submitit submits one run, no sweep",
            "write launcher: torchrun, or remove sweep",
            "key",
            involves=(("launcher",),),
        )
    yield from _clashes(sweep)


def _clashes(sweep: Sweep) -> Iterator[Problem]:
    """Keys that are given twice, or one inside of another."""
    for number, entry in enumerate(sweep.list or ({},)):
        places: dict[str, KeyPath] = {key: ("grid", key) for key in sweep.grid}
        for key in entry:
            if key in places:
                yield _clash(("list", number, key), f"{key} is in grid too")
            places[key] = ("list", number, key)
        for inner, place in places.items():
            outer = next((key for key in places if inner.startswith(f"{key}.")), None)
            if outer is not None:
                yield _clash(place, f"{inner} is inside of {outer}, which differs too")


def _clash(place: KeyPath, message: str) -> Problem:
    return Problem(("sweep", *place), message, "keep one of the two", "key")
