"""pydantic's errors in plain words: what was given, what belongs there, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic_core import ErrorDetails

from orchestrator.errors import quoted
from orchestrator.spec.base import PROBLEMS, KeyPath, Problem
from orchestrator.spec.keys import children, fields, fields_by_path, listed_path
from orchestrator.spec.later import LATER_KEYS, LATER_VALUES
from orchestrator.spec.suggest import did_you_mean, other_place, other_value


def problems_of(error: ErrorDetails) -> list[Problem]:
    """Return what one error of pydantic stands for, with paths from the job's root."""
    path: KeyPath = tuple(error["loc"])
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden":
        return [_unknown(path)]
    if kind == "missing":
        return [_missing(path)]
    if isinstance(given, str) and "${" in given:
        return [_variable(path, given)]
    if kind == PROBLEMS:
        found: list[Problem] = error["ctx"][PROBLEMS]
        return [problem.under(path) for problem in found]
    explain = _BY_TYPE.get(kind)
    if explain is None:
        return [Problem(path, f"{shown(given)} does not fit here: {error['msg']}", _belongs(path))]
    return [Problem(path, *explain(path, given, error.get("ctx", {})))]


def _dots(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def shown(value: object) -> str:
    """Return a value as a message names it, cut when long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a map" if isinstance(value, dict) else str(value)[:40]


def _unknown(path: KeyPath) -> Problem:
    name, parent = str(path[-1]), listed_path(path[:-1])
    if _dots(path) in LATER_KEYS:
        message = f"not supported yet (for {LATER_KEYS[_dots(path)]})"
        return Problem(path, message, "remove it", "key")
    if name == "clusters":
        return Problem(path, "belongs at the top of the job file only", "move it there", "key")
    known = children(parent)
    elsewhere = other_place(name, [info.path for info in fields() if info.supported])
    close = did_you_mean(name, known, cutoff=0.75 if elsewhere else 0.6)
    if close:
        meant = (*path[:-1], close[0])
        return Problem(path, "unknown key", f'did you mean "{close[0]}"?', "key", (meant,))
    if elsewhere:
        meant = tuple(elsewhere.split("."))
        return Problem(path, "unknown key", f"did you mean {elsewhere}?", "key", (meant,))
    return Problem(path, "unknown key", f"the keys here are {', '.join(known)}", "key")


def _missing(path: KeyPath) -> Problem:
    if isinstance(path[-1], int):
        return Problem(path[:-1], "too few values", _belongs(path[:-1]))
    fix = _EXAMPLES.get(_dots(path), f"add `{path[-1]}: ...`")
    return Problem(path, "required, and not given", fix, "key")


_EXAMPLES = {
    "name": "add `name: my-run`",
    "train": "add `train:` with model, data and steps below it",
    "train.model": "add a model, such as `model: {preset: nano}`",
    "train.data": "add the data, such as `data: {python_docs: true}`",
    "train.steps": "add the number of steps, such as `steps: 400`",
    "train.data.synthetic.samples": "add their number, such as `samples: 1000`",
}


def _variable(path: KeyPath, given: str) -> Problem:
    name = _dots(path)
    return Problem(
        path,
        f"{shown(given)}: variables work in free texts only, and this must be known before",
        f"write the value itself, or give it with --set {name}=...",
    )


def _belongs(path: KeyPath) -> str:
    """Return what belongs at a path, for a fix; empty if nothing is known of it."""
    info = fields_by_path().get(listed_path(path))
    return f"give {_article(info.type)}" if info else ""


def _article(words: str) -> str:
    if words.startswith(("true", "text or", "path or")) or " or " in words.split(" (")[0]:
        return words
    return f"a {words}"


# message and fix
_Words = tuple[str, str]


def _map(path: KeyPath, given: object, _: Any) -> _Words:
    message = f"a map (lines of `key: value`) belongs here, not {shown(given)}"
    keys = children(listed_path(path))
    if isinstance(given, (list, tuple)):
        return message, "remove the hyphens or brackets, and write `key: value` lines"
    return message, f"indent its keys below it: {', '.join(keys)}" if keys else ""


def _whole_number(path: KeyPath, given: object, _: Any) -> _Words:
    message = f"a whole number belongs here, not {shown(given)}"
    if isinstance(given, float) and given.is_integer():
        return message, f"write {int(given)}"
    if isinstance(given, str) and re.fullmatch(r"[-+]?\d{1,18}", given, re.ASCII):
        return message, f"remove the quotes: {given}"
    if isinstance(given, str) and re.fullmatch(r"\d{1,3}([_,]\d{3}){1,5}", given, re.ASCII):
        return message, f"write {re.sub('[_,]', '', given)}"
    return message, _belongs(path)


def _number(path: KeyPath, given: object, _: Any) -> _Words:
    message = f"a number belongs here, not {shown(given)}"
    if isinstance(given, str):
        try:
            float(given)
        except ValueError:
            return message, _belongs(path)
        return message, f"remove the quotes: {given}"
    return message, _belongs(path)


def _boolean(_: KeyPath, given: object, __: Any) -> _Words:
    message = f"true or false belongs here, not {shown(given)}"
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false", "1": "true", "0": "false"}
    meant |= {"true": "true", "false": "false", "y": "true", "n": "false"}
    word = meant.get(str(given).lower())
    return message, f"write {word}" if word else ""


def _text(path: KeyPath, given: object, _: Any) -> _Words:
    message = f"a text belongs here, not {shown(given)}"
    if isinstance(given, (bool, int, float)):
        return message, f'put it in quotes: "{shown(given)}"'
    return message, _belongs(path)


def _choice(path: KeyPath, given: object, context: Any) -> _Words:
    if given in LATER_VALUES.get(_dots(path), ()):
        allowed = _choices(context)
        return f"{shown(given)} is not supported yet", f"use {' or '.join(allowed)}"
    allowed = _choices(context)
    close = []
    if isinstance(given, str):
        same = other_value(_dots(path), given)
        close = [same] if same else did_you_mean(given, allowed)
    message = f"{shown(given)} is none of {', '.join(allowed)}"
    if len(allowed) == 1:
        message = f"only {allowed[0]} can be written here, not {shown(given)}"
    return message, f'did you mean "{close[0]}"?' if close else ""


def _choices(context: Any) -> list[str]:
    """Return the values that pydantic names as `'a', 'b' or 'c'`."""
    expected = str(context["expected"])
    return re.findall(r"'([^']*)'", expected) or [expected.lower()]


def _bound(words: str, key: str) -> Callable[[KeyPath, object, Any], _Words]:
    def explain(path: KeyPath, given: object, context: Any) -> _Words:
        limit = context[key]
        limit = int(limit) if float(limit).is_integer() else limit
        return f"{shown(given)} is not {words} {limit}", _belongs(path)

    return explain


def _finite(path: KeyPath, given: object, _: Any) -> _Words:
    return f"{given} is no finite number", _belongs(path)


def _pattern(path: KeyPath, given: object, _: Any) -> _Words:
    info = fields_by_path().get(listed_path(path))
    return f"{shown(given)} is not a {info.type if info else 'fitting text'}", _HINTS.get(
        _dots(path), ""
    )


_HINTS = {
    "train.model.factory": "write it as package.module:function",
    "network.interface": "give one name as `ip link` shows it, such as eth0",
    "resources.gpu_type": "use letters, digits, dots, hyphens and underscores",
}


def _empty(path: KeyPath, _: object, __: Any) -> _Words:
    return "an empty text says nothing", _belongs(path) if path else ""


def _list(path: KeyPath, given: object, _: Any) -> _Words:
    return f"a list belongs here, not {shown(given)}", _belongs(path)


def _too_long(path: KeyPath, _: object, __: Any) -> _Words:
    return "too many values", _belongs(path)


_BY_TYPE: dict[str, Callable[[KeyPath, Any, Any], _Words]] = {
    "model_type": _map,
    "model_attributes_type": _map,
    "dict_type": _map,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "float_type": _number,
    "finite_number": _finite,
    "bool_type": _boolean,
    "string_type": _text,
    "string_too_short": _empty,
    "string_pattern_mismatch": _pattern,
    "string_too_long": _pattern,
    "literal_error": _choice,
    "tuple_type": _list,
    "too_long": _too_long,
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("below", "lt"),
    "less_than_equal": _bound("at most", "le"),
}
