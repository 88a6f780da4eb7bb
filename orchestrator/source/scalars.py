"""Plain scalars by YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3.2)."""

from __future__ import annotations

import re
from collections.abc import Callable

Scalar = str | int | float | bool | None

# Longer numbers stay texts: no setting needs them, and int() refuses them from 4300 digits on.
_MAX = 300
_RULES: tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), lambda text: int(text, 10)),
    (re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda _: float("nan")),
)


def resolve_plain(text: str) -> Scalar:
    """Return what an unquoted scalar stands for: None, a boolean, a number, or the text itself."""
    if len(text) > _MAX:
        return text
    for pattern, convert in _RULES:
        if pattern.fullmatch(text):
            return convert(text)
    return text
