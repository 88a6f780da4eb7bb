"""What turns one object into another, as the operations of a JSON patch (RFC 6902)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def operations(old: Any, new: Any, path: str = "") -> Iterator[Operation]:
    """Yield what turns `old` into `new`, as deep in the tree as possible, in a fixed order.

    A list of another length is replaced as a whole: positions in it would say nothing to a reader.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _at_key(old, new, key, f"{path}/{_pointer(key)}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from operations(before, after, f"{path}/{index}")
    elif json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True):  # True is not 1
        yield {"op": "replace", "path": path, "value": new}


def _at_key(old: dict[str, Any], new: dict[str, Any], key: str, path: str) -> Iterator[Operation]:
    if key not in new:
        yield {"op": "remove", "path": path}
    elif key not in old:
        yield {"op": "add", "path": path, "value": new[key]}
    else:
        yield from operations(old[key], new[key], path)


def _pointer(key: str) -> str:
    """A key as a JSON pointer has it (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
