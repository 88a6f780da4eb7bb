"""Texts of the user and of programs as a page may show them: no secret, no control character."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from orchestrator.errors import printable
from orchestrator.secret_text import MASK, is_named_secret, is_secret, masked, masked_line

# RFC 7468: the lines between these two are the key.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
SHORTEST = 4  # of a secret that is looked for everywhere: a shorter one is found by its name
MAX_DEPTH = 50
MAX_NUMBER = 1e30


def shown(value: str) -> str:
    """The text with *** for what looks like a secret, and ? for what is no character to see."""
    return "\n".join(printable(line) for line in masked(value).replace("\r\n", "\n").split("\n"))


@dataclass(frozen=True)
class Mask:
    """What a page may not show.

    values: texts that are secrets by their names somewhere; they are hidden wherever they stand.
    """

    values: frozenset[str] = frozenset()

    def __call__(self, content: str) -> str:
        """A text without what is a secret by its looks, by its name, or as one of `values`."""
        content = _PRIVATE_KEY.sub(MASK, content)
        for value in self._sought:
            content = content.replace(value, MASK)
        return "\n".join(masked_line(line) for line in content.split("\n"))

    def shown(self, content: str) -> str:
        """The text without secrets and without control characters."""
        return shown(self(content))

    def data(self, value: Any, name: str = "") -> Any:
        """The same maps, lists and values without secrets; `name` is that of the value."""
        if isinstance(value, dict):
            return {self._key(key): self.data(one, _name(value, key)) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(one, called) for called, one in _named(value, name)]
        if isinstance(value, str):
            return MASK if is_secret(name, value) else self(value)
        return MASK if _is_secret_number(name, value) else value

    def _key(self, key: Any) -> str:
        return self(str(key))

    def joined(self, other: Mask) -> Mask:
        return Mask(self.values | other.values)

    @cached_property
    def _sought(self) -> list[str]:
        """The forms in which the values may stand, the longest first."""
        forms = {
            form.strip()
            for value in self.values
            for form in (value, json.dumps(value)[1:-1], value.replace("'", "''"),
                         *value.splitlines())
        }  # fmt: skip
        return sorted((form for form in forms if len(form) >= SHORTEST), key=lambda f: (-len(f), f))


def _name(own: dict[Any, Any], key: Any) -> str:
    """What a value of a map is called: by its key, or in a list of variables by their names."""
    named = own.get("name")
    return named if key == "value" and isinstance(named, str) else str(key)


def _named(values: Iterable[Any], name: str) -> Iterator[tuple[str, Any]]:
    """The values of a list with what they are called: that after `--api-key` by it."""
    before: Any = ""
    for value in values:
        is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
        yield before.lstrip("-") if is_option else name, value
        before = value


def _is_secret_number(name: str, value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and is_named_secret(name, str(value))


def secret_values(data: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """The texts in a job's or a manifest's data that are secrets, by their names or looks."""
    if depth > MAX_DEPTH:
        return
    if isinstance(data, dict):
        for key, value in data.items():
            yield from secret_values(value, _name(data, key), depth + 1)
    elif isinstance(data, list):
        for called, value in _named(data, name):
            yield from secret_values(value, called, depth + 1)
    elif isinstance(data, str):
        if is_secret(name, data):
            yield data
        yield from _assigned(data)
    elif _is_secret_number(name, data):
        yield str(data)


_EXPORT = re.compile(r"""(?m)(?<![\w./-])(?:--)?([A-Za-z_][\w-]*)=("[^"\n]*"|'[^'\n]*'|[^\s"']+)""")


def _assigned(text: str) -> Iterator[str]:
    """Values in `NAME=value` of a script or a command that are secrets by their names."""
    for found in _EXPORT.finditer(text):
        value = found[2].strip("\"'")
        if is_named_secret(found[1], value):
            yield value


def tidy(value: Any, depth: int = 0) -> Any:
    """A value from JSON or YAML that all that follows can bear: None in the place of a number that
    is none or beyond any size or time, of anything too deep, and of what is neither."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {str(key): tidy(one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [tidy(one, depth + 1) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) and abs(value) < MAX_NUMBER else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < MAX_NUMBER else None
    return value if isinstance(value, (str, bool)) else None
