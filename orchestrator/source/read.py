"""A file or text to a Document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from orchestrator.errors import Fault, FaultsError, Position, UserError
from orchestrator.source.compose import Composer, Node
from orchestrator.source.decode import MAX_BYTES, decode
from orchestrator.source.document import Document, KeyPath, located, split_lines
from orchestrator.source.scalars import resolve_plain
from orchestrator.source.syntax import TAB_FIX, TAB_MESSAGE, Complaint, syntax_fault

# The C parser is ten times faster; a build of PyYAML without libyaml still works.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
MAX_FAULTS = 100


def read_document(path: str | Path) -> Document:
    """Return the data of a YAML file.

    Raises:
        UserError: the file cannot be read.
        FaultsError: it cannot be understood; see parse_document.
    """
    return parse_document(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """Return a file's bytes, at most one more than a document may have.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with Path(path).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(_not_found(Path(path))) from None
    except IsADirectoryError:
        raise UserError(f"{path}: this is a folder, not a file; give the file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read: {reason}") from None


def _not_found(path: Path) -> str:
    if path.is_absolute():
        return f"{path}: no such file; check the path"
    return f"{path}: no such file in {Path.cwd()}; check the path, or change the folder"


def parse_document(raw: bytes, file: str) -> Document:
    """Return the data of a YAML text whose root is a map.

    Args:
        raw: UTF-8, 1 MiB at most.
        file: what to call it in messages.

    Raises:
        FaultsError: a syntax error, another encoding, nothing in it, no map, or beyond the limits.
            What does not keep the data from being judged is in the document's `faults` instead.
    """
    text = decode(raw, file)
    lines = split_lines(text)
    composer = Composer(file, lines)
    tabs = _TabFinder(file, text, lines)
    try:
        composer.read(tabs.watch(yaml.parse(text, Loader=_LOADER)))
    except yaml.MarkedYAMLError as error:
        faults = [*composer.faults[:MAX_FAULTS], _syntax(file, lines, composer, error)]
        raise FaultsError(dict.fromkeys(faults)) from None
    except yaml.YAMLError as error:
        raise FaultsError([*composer.faults, Fault(file, None, "", f"not YAML: {error}")]) from None
    root = _root_map(file, lines, composer)
    keys: dict[KeyPath, Position] = {(): root.position}
    values: dict[KeyPath, Position] = {(): root.position}
    data = _plain(root, (), keys, values)
    found = sorted([*composer.faults, *tabs.faults()], key=lambda f: f.position or Position(0, 0))
    return Document(file, text, data, keys, values, tuple(found[:MAX_FAULTS]))


def _syntax(file: str, lines: list[str], composer: Composer, error: yaml.MarkedYAMLError) -> Fault:
    end = Position(len(lines), len(lines[-1]) + 1)
    at = min(_position(error.problem_mark) or end, end)
    begin = min(_position(error.context_mark) or at, end)
    bracket = composer.open_bracket() if at == end else None
    complaint = Complaint(error.problem or "", error.context or "", at, begin)
    return syntax_fault(file, lines, complaint, bracket)


def _position(mark: yaml.Mark | None) -> Position | None:
    return Position(mark.line + 1, mark.column + 1) if mark is not None else None


def _root_map(file: str, lines: list[str], composer: Composer) -> Node:
    root = composer.root
    if root is not None and isinstance(root.value, dict):
        return root
    if root is None or root.value is None:
        message, fix = "the file is empty", "`orchestrate init` writes one to start from"
        fault = Fault(file, None, "", message, fix)
    else:
        what = "a list" if isinstance(root.value, list) else "a single value"
        message = f"the file holds {what}, where a map (lines of `key: value`) belongs"
        fault = located(file, lines, root.position, "", message, "begin with `name: ...`")
    raise FaultsError([*composer.faults, fault])


def _plain(
    node: Node, path: KeyPath, keys: dict[KeyPath, Position], values: dict[KeyPath, Position]
) -> Any:
    """Return a node's data, and note positions; depth and number of nodes are limited already."""
    values[path] = node.position
    if isinstance(node.value, dict):
        data = {}
        for name, (position, child) in node.value.items():
            keys[(*path, name)] = position
            data[name] = _plain(child, (*path, name), keys, values)
        return data
    if isinstance(node.value, list):
        items = []
        for index, child in enumerate(node.value):
            keys[(*path, index)] = child.position
            items.append(_plain(child, (*path, index), keys, values))
        return items
    return node.value


class _TabFinder:
    """Finds tabs outside of texts and comments; the C parser lets those after a colon pass."""

    def __init__(self, file: str, text: str, lines: list[str]) -> None:
        self._file, self._text, self._lines = file, text, lines
        self._spans: list[tuple[int, int]] = []

    def watch(self, events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                begin, end = cast(yaml.Mark, event.start_mark), cast(yaml.Mark, event.end_mark)
                self._spans.append((begin.index, end.index))
            yield event

    def faults(self) -> Iterator[Fault]:
        if "\t" not in self._text:
            return
        end = 0
        for begin, next_end in [*self._spans, (len(self._text), 0)]:
            yield from self._gap(end, begin)
            end = next_end

    def _gap(self, begin: int, end: int) -> Iterator[Fault]:
        """Yield a fault for the first tab of each line between two scalars."""
        offset = begin
        for line in self._text[begin:end].splitlines(keepends=True):
            code = line.split("#", 1)[0]
            before_scalar = offset + len(line) == end and not line.endswith(("\n", "\r"))
            if "\t" in code and (code.strip() or (before_scalar and end < len(self._text))):
                yield self._fault(offset + code.index("\t"))
            offset += len(line)

    def _fault(self, index: int) -> Fault:
        before = split_lines(self._text[:index])
        at = Position(len(before), len(before[-1]) + 1)
        return located(self._file, self._lines, at, "", TAB_MESSAGE, TAB_FIX)


def parse_value(text: str) -> Any:
    """Return the value of a `--set` option.

    Text that begins with `[`, `{` or a quote is YAML; anything else is one plain scalar as it
    stands, so that `*.txt`, `a: b` and `#1` need no quotes.

    Raises:
        ValueError: it begins like YAML and is none; the text says why.
    """
    stripped = text.strip()
    if not stripped.startswith(("[", "{", '"', "'")):
        return resolve_plain(stripped)
    try:
        document = parse_document(f"value: {stripped}\n".encode(), "--set")
    except FaultsError as error:
        raise ValueError(error.faults[0].message) from None
    if document.faults:
        raise ValueError(document.faults[0].message)
    if len(document.data) > 1:
        raise ValueError("unexpected text after the value")
    return document.data["value"]
