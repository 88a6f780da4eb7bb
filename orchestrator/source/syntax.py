"""The parser's complaints in plain words, with the place where the mistake is and a fix."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.errors import Fault, Position
from orchestrator.source.document import located

TAB_MESSAGE = "a tab, where YAML wants spaces"
TAB_FIX = "replace it by spaces"
NBSP_MESSAGE = "a non-breaking space, which looks like a space and is none"
NBSP_FIX = "retype it as a plain space, or put the text in quotes"


class Complaint(NamedTuple):
    """A syntax error as the parser gives it; lines and columns count from 1."""

    problem: str
    context: str
    at: Position
    begin: Position


class _Words(NamedTuple):
    message: str
    fix: str
    at: Position


def syntax_fault(
    file: str, lines: list[str], complaint: Complaint, bracket: Position | None
) -> Fault:
    """Return the one fault that stands for a syntax error.

    Args:
        file: its name.
        lines: its lines.
        complaint: what the parser says.
        bracket: where a bracket is that is still open at the end of the text.
    """
    if bracket is not None:
        character = lines[bracket.line - 1][bracket.column - 1]
        message = f"this {character} is not closed, or a comma is missing"
        return located(file, lines, bracket, "", message, "")
    line = lines[complaint.at.line - 1] if complaint.at.line <= len(lines) else ""
    above = _line_above(lines, complaint.at.line)
    words = _whitespace(line, above, complaint) or _by_problem(line, above, complaint)
    return located(file, lines, words.at, "", words.message, words.fix)


def _whitespace(line: str, above: tuple[int, str], complaint: Complaint) -> _Words | None:
    indent = line[: _indent(line)]
    if "\t" in indent:
        return _Words(TAB_MESSAGE, TAB_FIX, Position(complaint.at.line, indent.index("\t") + 1))
    for number, text in (above, (complaint.at.line, line)):
        if "\xa0" in text:
            return _Words(NBSP_MESSAGE, NBSP_FIX, Position(number, text.index("\xa0") + 1))
    return None


def _line_above(lines: list[str], number: int) -> tuple[int, str]:
    """Return number and text of the last line with something in it before line `number`."""
    for above in range(min(number - 1, len(lines)), 0, -1):
        if lines[above - 1].strip():
            return above, lines[above - 1]
    return 0, ""


def _by_problem(line: str, above: tuple[int, str], complaint: Complaint) -> _Words:
    problem = complaint.problem
    if problem.startswith("mapping values are not allowed"):
        return _second_colon(line, above, complaint.at)
    if problem.startswith("did not find expected key"):
        return _no_key(line, complaint.at)
    if "cannot start any token" in problem:
        return _bad_start(line, complaint.at)
    for part, message, fix, at_begin in _TABLE:
        if part in f"{complaint.context}: {problem}":
            at = complaint.begin if at_begin else complaint.at
            return _Words(message, fix, at)
    return _Words(f"not YAML: {complaint.context} {problem}".strip(), "", complaint.at)


_NO_COLON = "a line without a colon, where a key belongs"
_NO_COLON_FIX = "write `key: value`, with a space after the colon"
# Part of the parser's words, message, fix, whether the mistake is where the construct begins.
_TABLE = (
    (
        "could not find expected ':'",
        _NO_COLON,
        _NO_COLON_FIX,
        True,
    ),
    (
        "did not find expected '-' indicator",
        "not a list item, though the lines above are a list",
        "begin it with `- `, or indent it as part of the item above",
        False,
    ),
    ("did not find expected ',' or ']'", "this [ is not closed, or a comma is missing", "", True),
    ("did not find expected ',' or '}'", "this { is not closed, or a comma is missing", "", True),
    ("quoted scalar: found unexpected end", "this quote is not closed", "add the other one", True),
    (
        "parsing a quoted scalar",
        "in double quotes a backslash begins an escape, and this is none",
        "use single quotes, or write the backslash twice",
        False,
    ),
    (
        "scanning an alias",
        "* begins an alias of YAML",
        'put the value in quotes, such as "*.txt"',
        True,
    ),
    ("scanning an anchor", "& begins an anchor of YAML", "put the value in quotes", True),
    ("a tag", "! begins a tag of YAML", "put the value in quotes", True),
    (
        "block sequence entries are not allowed",
        "a list item cannot stand on the line of its key",
        "put it on a line of its own, or write the list as [a, b]",
        False,
    ),
    (
        "maximum nesting depth",
        "far too many levels inside of one another",
        "is this the right file?",
        False,
    ),
    ("incompatible YAML document", "this is a version of YAML from the future", "remove it", False),
    (
        "did not find expected node content",
        "a closing bracket without an opening one",
        "remove it, or put the value in quotes",
        False,
    ),
)


def _second_colon(line: str, above: tuple[int, str], at: Position) -> _Words:
    if ": " in line[: at.column - 1]:
        return _Words("a colon inside of a value", "put the value in quotes", at)
    number, text = above
    if number and ":" not in text:
        return _Words(_NO_COLON, _NO_COLON_FIX, Position(number, _indent(text) + 1))
    return _Words(
        "this key does not fit the lines above it",
        "give it the same indentation as its neighbours, and close what is open above",
        Position(at.line, _indent(line) + 1),
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _no_key(line: str, at: Position) -> _Words:
    rest = line[at.column - 1 :]
    if line[: at.column - 1].strip():
        return _Words("unexpected text after a value", "put the whole value in quotes", at)
    if rest.startswith(":"):
        return _Words("a colon without a key before it", "write `key: value`", at)
    if rest.startswith(("}", "]")):
        return _Words("a closing bracket without an opening one", "remove it", at)
    if rest.startswith("-"):
        return _Words(
            "a list item between the keys of a map",
            "indent it under its key, or remove the hyphen",
            at,
        )
    return _Words(
        "this indentation fits none of the lines above",
        "give it the same indentation as its neighbours",
        at,
    )


def _bad_start(line: str, at: Position) -> _Words:
    character = line[at.column - 1 : at.column]
    if character == "\t":
        return _Words(TAB_MESSAGE, TAB_FIX, at)
    return _Words(f"a value cannot begin with {character}", "put the value in quotes", at)
