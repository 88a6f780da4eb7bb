"""Texts of the user and of programs as a page may show them: no secret, no control character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.errors import printable
from orchestrator.secret_text import MASK, is_secret, masked, masked_line

# RFC 7468: the lines between these two are the key.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
SHORTEST = 4  # of a secret that is looked for everywhere: a shorter one is found by its name
MAX_DEPTH = 50


def shown(value: str) -> str:
    """The text with *** for what looks like a secret, and ? for what is no character to see."""
    return "\n".join(printable(line) for line in masked(value).replace("\r\n", "\n").split("\n"))


def without_secrets(content: str, values: Iterable[str]) -> str:
    """A file's text without what is a secret by its looks, by its name, or as one of `values`."""
    content = _PRIVATE_KEY.sub(MASK, content)
    for value in sorted(set(values), key=lambda v: (-len(v), v)):
        for line in {value, json.dumps(value)[1:-1], *value.splitlines()}:
            if len(line.strip()) >= SHORTEST:
                content = content.replace(line.strip(), MASK)
    return "\n".join(masked_line(line) for line in content.split("\n"))


def secret_values(data: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """The texts in a job's or a manifest's data that are secrets, by their names or looks."""
    if depth > MAX_DEPTH:
        return
    if isinstance(data, dict):
        own = data.get("name")
        for key, value in data.items():
            called = own if key == "value" and isinstance(own, str) else str(key)
            yield from secret_values(value, called, depth + 1)
    elif isinstance(data, list):
        for value in data:
            yield from secret_values(value, name, depth + 1)
    elif isinstance(data, str) and is_secret(name, data):
        yield data
