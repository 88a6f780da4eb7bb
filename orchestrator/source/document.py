"""Data together with where each piece of it stands in the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from orchestrator.errors import Fault, Position
from orchestrator.secret_text import masked, masked_line

KeyPath = tuple[str | int, ...]

# The same line breaks as YAML 1.1's reader has, so that its line numbers fit.
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


def split_lines(text: str) -> list[str]:
    """Return the lines without their breaks; at least one."""
    return _LINE_BREAK.split(text)


@dataclass(frozen=True)
class Document:
    """A file's data, with positions.

    Args:
        file: the file as the user named it.
        text: the whole text.
        data: what it holds: maps, lists, texts, numbers, booleans and None.
        positions: for each path the place of its key (of the item itself in a list); `()` is the
            whole.
        value_positions: for each path the place of its value.
        faults: what is wrong with the file beyond its data, such as a duplicate key. Whoever
            judges the data reports these as well.
        expanded: whether its variables have been replaced, see `expand`.
    """

    file: str
    text: str
    data: dict[str, Any]
    positions: Mapping[KeyPath, Position]
    value_positions: Mapping[KeyPath, Position] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    expanded: bool = False

    @cached_property
    def _lines(self) -> list[str]:
        return split_lines(self.text)

    def position(self, path: KeyPath, at: Literal["key", "value"] = "key") -> Position | None:
        """Return where a key or value is; for one that is missing, where its nearest parent is."""
        places = self.value_positions if at == "value" else self.positions
        for end in range(len(path), -1, -1):
            found = places.get(path[:end]) or self.positions.get(path[:end])
            if found is not None:
                return found
        return None

    def fault(
        self,
        path: KeyPath,
        message: str,
        fix: str = "",
        *,
        at: Literal["key", "value"] = "key",
        key: str | None = None,
    ) -> Fault:
        """Return a fault at a path of this document.

        Args:
            path: keys from the document's root; need not exist.
            message: what is wrong.
            fix: what to do.
            at: whether to point at the key or at its value.
            key: how to call the place; by default the path with dots.
        """
        name = dotted(path) if key is None else key
        return located(self.file, self._lines, self.position(path, at), name, message, fix)


def dotted(path: KeyPath) -> str:
    """Return a path as it is written: `train.data.text[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def located(
    file: str, lines: list[str], position: Position | None, key: str, message: str, fix: str
) -> Fault:
    """Return a fault with its source line. Messages end up in logs: secrets in them are masked."""
    line = ""
    if position is not None and position.line <= len(lines):
        line = masked_line(lines[position.line - 1])
    return Fault(file, position, key, masked(message), masked(fix), line)
