"""The outline of a user's model, from the file that `orchestrate-trainer inspect` writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import Fault, FaultsError
from orchestrator.estimate.outline import Outline, Parameter, Unit

SUFFIX = ".inspected.json"
WRITE_AGAIN = "write the file again with orchestrate-trainer inspect, of this version"
MOST_FAULTS = 10  # shown; a file of another kind would have thousands


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Parameter(_Part):
    name: str
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    trainable: bool
    item_bytes: int = Field(ge=1, le=16)

    def outline(self) -> Parameter:
        return Parameter(self.name, self.shape, self.trainable, self.item_bytes)


class _Bytes(_Part):
    """Of one sequence, by number format; autocast has fp32 parameters."""

    fp32: int = Field(alias="fp32/none", ge=0)
    autocast: int = Field(alias="autocast/none", ge=0)
    bf16: int = Field(alias="bf16/none", ge=0)

    def by_format(self) -> dict[str, int]:
        return self.model_dump(by_alias=True)


class _Unit(_Part):
    name: str
    parameters: tuple[_Parameter, ...]
    activation_bytes: _Bytes

    def outline(self) -> Unit:
        parameters = tuple(parameter.outline() for parameter in self.parameters)
        return Unit(self.name, parameters, self.activation_bytes.by_format())


class WrapAsked(_Part):
    """How units were looked for; what does not matter for `by` is empty or 0."""

    by: Literal["block", "class", "size"]
    classes: tuple[str, ...]
    min_parameters: int


class _File(_Part):
    version: Literal[1]
    torch: str
    factory: str
    args: dict[str, Any]
    context: int = Field(ge=1)
    wrap: WrapAsked
    buffer_bytes: int = Field(ge=0)
    flops_per_token: float | None = Field(ge=0)
    units: tuple[_Unit, ...]
    root: _Unit
    working_bytes: _Bytes
    left_out: tuple[str, ...]


class Inspected(NamedTuple):
    """What the file holds: the model, and what it was asked for with."""

    factory: str
    args: dict[str, Any]
    context: int
    wrap: WrapAsked
    outline: Outline


def read_inspected(text: str, where: str) -> Inspected:
    """Return what the file holds.

    Args:
        where: its name in messages.

    Raises FaultsError, each fault with its path in the JSON.
    """
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        raise FaultsError(list(_faults(error, where))[:MOST_FAULTS]) from None
    return Inspected(file.factory, file.args, file.context, file.wrap, _outline(file))


def inspected_outline(text: str, where: str) -> Outline:
    """Return the model alone; as read_inspected."""
    return read_inspected(text, where).outline


def _outline(file: _File) -> Outline:
    return Outline(
        units=tuple(unit.outline() for unit in file.units),
        root=file.root.outline(),
        layers=len(file.units),
        heads=0,
        width=0,
        vocab_size=0,
        dropout=0.0,
        flops_per_token=file.flops_per_token,
        buffer_bytes=file.buffer_bytes,
        working_bytes=file.working_bytes.by_format(),
        left_out=file.left_out,
    )


def _faults(error: ValidationError, where: str) -> Iterator[Fault]:
    for one in error.errors(include_url=False):
        path = ".".join(str(part) for part in one["loc"])
        yield Fault(where, None, path, _words(one), WRITE_AGAIN)


def _words(one: Any) -> str:
    given = str(one["input"])
    if one["type"] in ("missing", "extra_forbidden"):
        return "is missing" if one["type"] == "missing" else "is not known"
    shown = given if len(given) <= 40 else given[:37] + "..."
    return f"is {shown} ({one['msg'].lower()})"
