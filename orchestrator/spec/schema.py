"""The job file's JSON Schema, for editors and for other programs."""

from __future__ import annotations

import copy
from typing import Any

from orchestrator.spec.job import JobSpec
from orchestrator.spec.keys import CLUSTERS

PARTIAL = "Partial"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the job file.

    Durations and sizes are texts with a pattern; keys of later releases are absent. An override
    under `clusters` has the same keys, none of them required.
    """
    job = JobSpec.model_json_schema()
    definitions = job.pop("$defs")
    partial = _partial(job)
    definitions |= {f"{name}{PARTIAL}": _partial(part) for name, part in definitions.items()}
    definitions[f"Job{PARTIAL}"] = partial
    job["properties"]["clusters"] = {
        "type": "object",
        "description": CLUSTERS,
        "additionalProperties": {"$ref": f"#/$defs/Job{PARTIAL}"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_nullable_sections(_without_titles(job)),
        "title": "Job file of orchestrate",
        "$defs": {n: _nullable_sections(_without_titles(part)) for n, part in definitions.items()},
    }


def _partial(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in which nothing is required, also further down."""
    partial = _with_refs(copy.deepcopy(schema))
    partial.pop("required", None)
    return dict(partial)


def _with_refs(value: Any) -> Any:
    if isinstance(value, dict):
        changed = {name: _with_refs(child) for name, child in value.items()}
        if isinstance(changed.get("$ref"), str):
            changed["$ref"] += PARTIAL
        return changed
    return [_with_refs(child) for child in value] if isinstance(value, list) else value


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without pydantic's titles, which only repeat the keys."""
    schema.pop("title", None)
    for part in schema.get("properties", {}).values():
        part.pop("title", None)
    return schema


def _nullable_sections(schema: dict[str, Any]) -> dict[str, Any]:
    """Let a section be empty, as a key is whose lines are all comments."""
    required = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        if "$ref" in part and name not in required:
            part["anyOf"] = [{"$ref": part.pop("$ref")}, {"type": "null"}]
            part.pop("default", None)
        elif part.get("type") == "object":
            part["type"] = ["object", "null"]
    return schema
