"""`${NAME}` and `${NAME:-default}` in the texts of a document.

`$${` stands for `${` itself; a `$` that is not followed by `{` is only a dollar sign. The default
may hold anything but `}`, and is taken for an empty variable too, as in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.errors import Fault, FaultsError
from orchestrator.source.document import Document, KeyPath

_PATTERN = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<bad>\$\{)"
)
_BAD = "`${` begins a variable, and this is none"
_BAD_FIX = "write ${NAME} or ${NAME:-default}; write $${ for the characters themselves"


def expand(document: Document, environ: Mapping[str, str] | None) -> Document:
    """Return the document with its variables replaced; positions stay as they were.

    Args:
        document: any.
        environ: values of the variables. None only turns `$${` into `${` and keeps the variables.

    Raises:
        FaultsError: variables that are not set and have no default, or malformed ones; all of them.
    """
    faults: list[Fault] = []

    def replaced(path: KeyPath, text: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match["escape"]:
                return "${"
            if environ is None:
                return match[0]
            name, default = match["name"], match["default"]
            value = environ.get(name) if name else None
            if not name:
                faults.append(document.fault(path, _BAD, _BAD_FIX, at="value"))
            elif value is None and default is None:
                faults.append(_unset(document, path, name))
            return value or default or ""

        return _PATTERN.sub(one, text)

    data = _mapped(document.data, (), replaced)
    if faults:
        raise FaultsError(faults)
    return replace(document, data=data, expanded=True)


def _unset(document: Document, path: KeyPath, name: str) -> Fault:
    fix = f"export {name}, or give a default: ${{{name}:-...}}"
    return document.fault(path, f"the variable {name} is not set", fix, at="value")


def unexpanded(document: Document) -> list[Fault]:
    """Return a fault for each text that holds variables, well-formed or not.

    There is none in a document whose variables have been replaced. A resolved job's `variables`
    are those of them that no stronger layer replaces.
    """
    return list(unexpanded_by_path(document).values())


def unexpanded_by_path(document: Document) -> dict[KeyPath, Fault]:
    """Return what `unexpanded` does, by the path of each text."""
    if document.expanded:
        return {}
    faults = {}
    for path, text in _texts(document.data, ()):
        found = [m for m in _PATTERN.finditer(text) if not m["escape"]]
        if any(match["bad"] for match in found):
            faults[path] = document.fault(path, _BAD, _BAD_FIX, at="value")
        elif found:
            names = ", ".join(dict.fromkeys(match[0] for match in found))
            message = f"{names} is replaced at submit only"
            fix = "write the value itself, or give it with --set"
            faults[path] = document.fault(path, message, fix, at="value")
    return faults


def _mapped(value: Any, path: KeyPath, change: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mapped(child, (*path, name), change) for name, child in value.items()}
    if isinstance(value, list):
        return [_mapped(child, (*path, index), change) for index, child in enumerate(value)]
    return change(path, value) if isinstance(value, str) else value


def _texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _texts(child, (*path, name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _texts(child, (*path, index))
    elif isinstance(value, str):
        yield path, value
