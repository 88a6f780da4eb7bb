"""What can go wrong, as a tree; everything that the launcher raises on purpose is one of these.

    OrchestrateError        exit code 1: something failed
    ├── BackendError        a scheduler or runner refused, or is not there
    └── UserError           exit code 2: a fault in what the user gave
        └── FaultsError     many located faults, reported together

Only the standard library is imported here, and little of it: every command pays for this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "BackendError",
    "Fault",
    "FaultsError",
    "OrchestrateError",
    "Position",
    "UserError",
    "quoted",
]

SHOWN_COLUMNS = 100


@dataclass(frozen=True, order=True)
class Position:
    """A place in a text; line and column count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong in a file, with its place, the line itself and what to do.

    Args:
        file: the file as the user named it, or `--set`.
        position: where in the file; None if no place can be named.
        key: dotted path of the key (`resources.nodes`); empty for the file as a whole.
        message: what is wrong, with what was given and what is allowed.
        fix: what to do; empty if the message says it all.
        source_line: the line at `position`, without its line break.
    """

    file: str
    position: Position | None
    key: str
    message: str
    fix: str = ""
    source_line: str = ""

    def where(self) -> str:
        """Return `file:line:column`, or the file alone where there is no position."""
        if self.position is None:
            return self.file
        return f"{self.file}:{self.position.line}:{self.position.column}"

    def render(self) -> str:
        """Return the fault as one to four lines: place and message, source line, caret, fix."""
        head = f"{self.where()} {self.key}:" if self.key else f"{self.where()}:"
        lines = [printable(f"{head} {self.message}")]
        if self.position is not None and self.source_line.strip():
            lines += _excerpt(self.source_line, self.position.column)
        if self.fix:
            lines.append(printable(f"  fix: {self.fix}"))
        return "\n".join(lines)

    def as_warning(self) -> str:
        """Return the fault as one line that says what is doubtful, and what to do."""
        head = f"{self.where()} {self.key}:" if self.key else f"{self.where()}:"
        fix = f"; {self.fix}" if self.fix else ""
        return printable(f"warning: {head} {self.message}{fix}")

    def as_dict(self) -> dict[str, str | int | None]:
        """Return the fault as plain data for `--json`; line and column are None without a place."""
        return {
            "file": self.file,
            "line": self.position.line if self.position else None,
            "column": self.position.column if self.position else None,
            "key": self.key,
            "message": self.message,
            "fix": self.fix,
        }


def _excerpt(line: str, column: int) -> list[str]:
    """Return the source line and a caret line under its `column`, cut to a terminal's width."""
    start = max(0, column - SHOWN_COLUMNS * 3 // 4) if len(line) > SHOWN_COLUMNS else 0
    shown = line[start : start + SHOWN_COLUMNS].rstrip()
    before = printable(line[start : column - 1])
    left, right = "... " * (start > 0), " ..." * (start + SHOWN_COLUMNS < len(line))
    text = left + printable(shown) + right
    return [f"    {text}", f"    {' ' * (len(left) + _width(before))}^"]


def printable(text: str) -> str:
    """Return the text with a space for each tab and `?` for what could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in text)


def quoted(text: str, limit: int = 40) -> str:
    """Return a value of the user's as a message shows it: in quotes, cut to `limit` characters."""
    return f'"{text if len(text) <= limit else text[: limit - 3] + "..."}"'


def _width(text: str) -> int:
    """Return how many terminal columns a text takes: CJK takes two, a combining mark none."""
    if text.isascii():
        return len(text)
    import unicodedata  # late: most files are plain ASCII

    marks = sum(1 for c in text if unicodedata.combining(c))
    wide = sum(1 for c in text if unicodedata.east_asian_width(c) in "WF")
    return len(text) + wide - marks


class OrchestrateError(Exception):
    """A failure that is reported as its text alone, without a traceback.

    Attributes:
        exit_code: what the command leaves with.
    """

    exit_code = 1


class UserError(OrchestrateError):
    """A fault in what the user gave: the text says where, what is allowed and what to do."""

    exit_code = 2


class FaultsError(UserError):
    """Located faults, all of them at once.

    Args:
        faults: at least one fault; they are shown in the order given.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        count = len(self.faults)
        total = "1 fault" if count == 1 else f"{count} faults"
        return "\n".join([*(fault.render() for fault in self.faults), total])


class BackendError(OrchestrateError):
    """A scheduler or runner refused, failed, or is not there; the text says which and why."""
