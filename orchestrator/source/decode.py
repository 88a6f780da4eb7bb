"""Bytes to text: UTF-8 only, and no characters that YAML does not allow."""

from __future__ import annotations

import codecs
import re

from orchestrator.errors import FaultsError, Position
from orchestrator.source.document import located, split_lines

MAX_BYTES = 2**20

_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# yaml.org/spec/1.2.2, section 5.1, without the byte order mark in the middle of a text.
_FORBIDDEN = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
# The same for ASCII alone: compiling the one above takes as long as reading a hundred job files.
_FORBIDDEN_ASCII = "[^\t\n\r\x20-\x7e]"


def decode(raw: bytes, file: str) -> str:
    """Return the text of a file.

    Args:
        raw: its bytes; a UTF-8 byte order mark is dropped.
        file: its name, for the message.

    Raises:
        FaultsError: too large, another encoding, or control characters.
    """
    if len(raw) > MAX_BYTES:
        raise _whole(file, f"is larger than {MAX_BYTES // 2**20} MiB", "is this the right file?")
    name = next((name for mark, name in _OTHER_ENCODINGS if raw.startswith(mark)), None)
    if name is None and b"\0" in raw[:1024]:
        name = "UTF-16 or not a text"
    if name is not None:
        raise _whole(file, f"is {name}, not UTF-8", "save it as UTF-8")
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(error, file) from None
    _refuse_control_characters(text, file)
    return text


def _whole(file: str, message: str, fix: str) -> FaultsError:
    return FaultsError([located(file, [], None, "", message, fix)])


def _undecodable(error: UnicodeDecodeError, file: str) -> FaultsError:
    raw: bytes = error.object
    before = raw[: error.start].decode("utf-8", "replace")
    lines = split_lines(before)
    position = Position(len(lines), len(lines[-1]) + 1)
    shown = split_lines(raw.decode("utf-8", "replace"))
    message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
    fix = "save it as UTF-8; from Latin-1: iconv -f latin1 -t utf-8"
    return FaultsError([located(file, shown, position, "", message, fix)])


def _refuse_control_characters(text: str, file: str) -> None:
    match = re.search(_FORBIDDEN_ASCII if text.isascii() else _FORBIDDEN, text)
    if match is None:
        return
    lines = split_lines(text[: match.start()])
    position = Position(len(lines), len(lines[-1]) + 1)
    message = f"the invisible character U+{ord(match[0]):04X} cannot be in a YAML file"
    raise FaultsError(
        [located(file, split_lines(text), position, "", message, "remove it, or retype the line")]
    )
