"""The elements of a sweep, each checked as the whole job that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.errors import Fault
from orchestrator.secret_text import MASK, is_secret
from orchestrator.source import Document
from orchestrator.source.document import dotted
from orchestrator.spec.base import KeyPath, Problem
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layers import Layer, Merged, merge, put
from orchestrator.spec.resolve import judge, layer_problems
from orchestrator.spec.sweep import Choice, Sweep


class Element(NamedTuple):
    """One run of a sweep.

    Args:
        values: in the job file's form, by key with dots.
        spec: the whole job with them.
    """

    values: dict[str, Any]
    spec: JobSpec


def resolve_elements(
    layers: Sequence[Layer], merged: Merged, sweep: Sweep
) -> tuple[list[Element], list[Fault]]:
    """Return the elements in their order and what is wrong with them, each fault at the value in
    the sweep that brings it.

    Args:
        layers: of the job, which is right without the sweep.
        merged: the same in one.
        sweep: what it says of the sweep.
    """
    elements: list[Element] = []
    faults: list[Fault] = []
    seen: dict[str, tuple[int, Sequence[Choice]]] = {}
    for number, choices in enumerate(sweep.elements()):
        values = {choice.key: choice.value for choice in choices}
        spec, problems = _judge(layers, values)
        faults += [_fault(merged, number, choices, problem) for problem in problems]
        if spec is None:
            continue
        twin, others = seen.setdefault(spec.model_dump_json(), (number, choices))
        if twin != number:
            differs = next(c for c in choices if c not in others)
            message = f"element {number} ({_words(choices)}) is the same run as element {twin}"
            fault = Problem(differs.path, message, "remove one of the two")
            faults.append(_located(merged, fault))
        elements.append(Element(values, spec))
    return elements, faults


def _judge(layers: Sequence[Layer], values: dict[str, Any]) -> tuple[JobSpec | None, list[Problem]]:
    """Return the job with these values, or None and what is wrong with it."""
    data: dict[str, Any] = {}
    for key, value in values.items():
        put(data, tuple(key.split(".")), value)
    own = list(layer_problems(data))
    bad = {path for problem in own for path in (problem.path, *problem.involves)}
    layer = Layer("sweep", Document("sweep", "", {}, {}), (), data)
    spec, whole = judge(merge([*layers, layer]), bad)
    return spec, own + whole


def _fault(merged: Merged, number: int, choices: Sequence[Choice], problem: Problem) -> Fault:
    """A problem of an element at the first value of the sweep that touches it."""
    touching = (c for path in (problem.path, *problem.involves) for c in _touching(choices, path))
    choice = next(touching, choices[-1])
    name = dotted(problem.path)
    where = "" if name == choice.key else f"{name}: "
    place = choice.path if problem.at == "value" or where else _key(choice)
    message = f"element {number} ({_words(choices)}): {where}{problem.message}"
    return _located(merged, Problem(place, message, problem.fix, problem.at))


def _touching(choices: Sequence[Choice], path: KeyPath) -> Iterator[Choice]:
    for choice in choices:
        key = tuple(choice.key.split("."))
        length = min(len(key), len(path))
        if key[:length] == path[:length]:
            yield choice


def _key(choice: Choice) -> KeyPath:
    """Where the key of a value is written."""
    return choice.path[:2] if choice.path[0] == "grid" else choice.path


def _located(merged: Merged, problem: Problem) -> Fault:
    owner = merged.owner(("sweep", *problem.path))
    assert owner is not None, "the sweep has come from one of the layers"
    return owner.fault(problem.under(("sweep",)))


def _words(choices: Sequence[Choice]) -> str:
    return ", ".join(f"{choice.key}={_short(choice)}" for choice in choices)


def _short(choice: Choice) -> str:
    text = str(choice.value)
    if is_secret(choice.key, text):
        return MASK
    return text if len(text) <= 40 else f"{text[:37]}..."
