"""Data as YAML text, the same bytes for the same data: what any YAML 1.1 or 1.2 reader reads back.

Texts are plain where no reader could take them for something else, in quotes otherwise; those of
several lines are blocks, so that a diff of them can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
# Words that YAML 1.1 takes for something else (yaml.org/type/bool.html, null.html).
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def yaml_text(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a map or a list as YAML in block style, in the order given."""
    return "\n".join(_lines(value)) + "\n" if value else f"{_scalar(value)}\n"


def _lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    if not isinstance(value, Mapping):
        for item in value:
            yield from _item(item)
        return
    for key, inner in value.items():
        head = f"{_scalar(str(key))}:"
        if _is_nested(inner):
            yield head
            yield from (f"  {line}" for line in _lines(inner))
        else:
            yield from _leaf(head, inner)


def _item(value: Any) -> Iterator[str]:
    if not _is_nested(value):
        yield from _leaf("-", value)
        return
    first, *others = _lines(value)
    yield f"- {first}"
    yield from (f"  {line}" for line in others)


def _is_nested(value: Any) -> bool:
    return bool(value) and isinstance(value, Mapping | list | tuple)


def _leaf(head: str, value: Any) -> Iterator[str]:
    if not isinstance(value, str) or not _fits_block(value):
        yield f"{head} {_scalar(value)}"
        return
    yield f"{head} {'|' if value.endswith(chr(10)) else '|-'}"
    yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))


def _fits_block(text: str) -> bool:
    """Whether a block scalar gives the text back: its first line sets the indentation, and of the
    line breaks at its end it keeps one or none."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 2 or not lines[0] or not lines[-1]:
        return False
    return not lines[0].startswith(" ") and all(line.isprintable() for line in lines)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(char: str) -> str:
    """A character in double quotes: JSON's escapes would split those beyond 16 bits in two, which
    YAML does not join again."""
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    if char in "\n\t":
        return {"\n": "\\n", "\t": "\\t"}[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
