"""Text to data, with the line and column of every key and value. The only package that reads YAML.

Scalars follow YAML 1.2's core schema: `12:00:00`, `no` and `on` are texts, `1e3` is a number,
`017` is 17 and `0o17` is 15. Merge keys, tags, duplicate keys, keys that are not texts and tabs
outside of texts are refused; anchors and aliases are allowed within limits.
"""

from orchestrator.source.document import Document
from orchestrator.source.expand import expand, unexpanded, unexpanded_by_path
from orchestrator.source.plain import plain
from orchestrator.source.read import parse_document, parse_value, read_bytes, read_document

__all__ = [
    "Document",
    "expand",
    "parse_document",
    "parse_value",
    "plain",
    "read_bytes",
    "read_document",
    "unexpanded",
    "unexpanded_by_path",
]
