"""The manifests that the tool itself has rendered, read as Kubernetes' tools read them."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def plain(text: str) -> dict[str, Any]:
    """Return the one object in a YAML text of our own; a job file is read by parse_document.

    Raises ValueError if it holds anything else.
    """
    try:
        content = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content
