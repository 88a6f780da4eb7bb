"""What all parts of the job file share: the model's settings, units, and faults with a path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from orchestrator import units

KeyPath = tuple[str | int, ...]
PROBLEMS = "problems"
# pydantic's documentation, "Plugins": "__all__" in it keeps pydantic from looking for any.
PLUGINS_VARIABLE = "PYDANTIC_DISABLE_PLUGINS"


class Part(BaseModel):
    """A map of the job file: frozen, no unknown keys, no conversion between types.

    pydantic makes the validator of a part when it is first used, so that a command pays for that
    of the whole job alone, and not for one of each section as well. The modules that define parts
    have no `from __future__ import annotations`: pydantic would evaluate each text by itself.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),  # keys have names of their own; looking for clashes takes time
    )

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Make the validator, without the plugins of pydantic that are installed.

        They have no part in the reading of a job file, and looking for them means reading the
        entry points of all installed packages. Programs that this one starts keep theirs.
        """
        before = os.environ.get(PLUGINS_VARIABLE)
        os.environ[PLUGINS_VARIABLE] = "__all__"
        try:
            return super().model_rebuild(**options)
        finally:
            if before is None:
                del os.environ[PLUGINS_VARIABLE]
            else:
                os.environ[PLUGINS_VARIABLE] = before

    def given(self, *names: str) -> list[str]:
        """Return which of these keys were written and hold something, in this order."""
        return [n for n in names if n in self.model_fields_set and getattr(self, n) is not None]


def key_of(name: str, field: FieldInfo) -> str:
    """Return how the job file calls a part's field: by its alias where Python cannot have the name.

    Args:
        name: the attribute's.
        field: of the part's model_fields.
    """
    return field.alias or name


@dataclass(frozen=True)
class Problem:
    """Something wrong with the data, before it has a place in a file.

    Args:
        path: keys from where the problem was found down to the value at fault.
        message: what is wrong, with what was given and what is allowed.
        fix: what to do.
        at: whether to point at the key or at its value.
        involves: other paths that the judgement rests on; it is dropped if one is faulty itself.
    """

    path: KeyPath
    message: str
    fix: str = ""
    at: Literal["key", "value"] = "value"
    involves: tuple[KeyPath, ...] = field(default=(), compare=False)

    def under(self, prefix: KeyPath) -> Problem:
        """Return the same problem seen from further up."""
        involves = tuple(prefix + path for path in self.involves)
        return Problem(prefix + self.path, self.message, self.fix, self.at, involves)


def problems_error(problems: Iterable[Problem]) -> PydanticCustomError:
    """Return the error that carries problems out of a pydantic validator."""
    found = list(problems)
    text = "; ".join(f"{'.'.join(map(str, p.path))}: {p.message}" for p in found)
    text = text.replace("{", "(").replace("}", ")")  # pydantic would format braces
    return PydanticCustomError(PROBLEMS, text, {PROBLEMS: found})


def _duration(value: object) -> int:
    try:
        return units.parse_duration(value)
    except units.UnitError as error:
        raise problems_error([Problem((), error.message, error.fix)]) from None


def _size(value: object) -> int:
    try:
        return units.parse_size(value)
    except units.UnitError as error:
        raise problems_error([Problem((), error.message, error.fix)]) from None


class TypeWords(NamedTuple):
    """How a type is called in messages, in `explain` and in the reference page."""

    words: str


class OrMap(NamedTuple):
    """A map that may stand in the place of a value; `explain` and the reference list its keys."""

    part: type[Part]


Duration = Annotated[
    int,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": units.DURATION_PATTERN}),
    TypeWords(f"duration ({units.DURATION_EXAMPLES})"),
]
"""Seconds; in the job file a text such as `90m`."""

Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"type": "string", "pattern": units.SIZE_PATTERN}),
    TypeWords(f"size ({units.SIZE_EXAMPLES})"),
]
"""Bytes; in the job file a text such as `80GiB`."""


def section(description: str) -> Any:
    """Return a field for a part that need not be given: all its keys have defaults.

    The default is validated, because a part made here would need a validator of its own.
    """
    return Field(default_factory=dict, validate_default=True, description=description)


def duration(default: str, description: str) -> Any:
    """Return a field of type Duration with its default in the job file's form."""
    return Field(
        default=units.parse_duration(default),
        description=description,
        json_schema_extra={"default": default},
    )


def as_tuple(value: object) -> object:
    """Return a list as a tuple, which a frozen part can hold; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def _one_or_many(value: object) -> object:
    if value == [] or value == "":
        raise problems_error([Problem((), "names nothing", "give at least one path")])
    return (value,) if isinstance(value, str) else as_tuple(value)


Text = Annotated[str, Field(min_length=1)]
"""A text that says something."""

Paths = Annotated[
    tuple[Text, ...],
    BeforeValidator(_one_or_many),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
    TypeWords("path or list of paths, globs allowed"),
]
"""Paths or globs; in the job file one text or a list of them."""

Fraction = Annotated[float, Field(ge=0, lt=1)]

Betas = Annotated[
    tuple[Fraction, Fraction],
    BeforeValidator(as_tuple),
    TypeWords("list of two numbers, each from 0 to below 1"),
]
