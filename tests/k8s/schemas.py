"""What an API server's schemas say about a manifest: built-in kinds of several Kubernetes
releases, and custom kinds by their released CRDs.

Stricter than a server: a null is refused too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate import utils as published
from referencing import Registry, Resource

from k8s.objects import children, walk

ROOT = Path(__file__).resolve().parent.parent.parent
CRDS = Path(os.environ.get("ORCHESTRATE_CRDS", ROOT.parent / "shared" / "schemas" / "crds"))
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"
"""The identity that kubernetes-validate gives to its file of definitions."""
POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
JOB_SPEC = "io.k8s.api.batch.v1.JobSpec"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
LIST_KEY_DEFAULTS = {"protocol": "TCP"}
"""What the API server fills in before it compares the keys of a list (core/v1 ContainerPort)."""

needs_crds = pytest.mark.skipif(
    not CRDS.is_dir(),
    reason=f"no CRDs at {CRDS}: name a folder of them by ORCHESTRATE_CRDS to run this",
)


def releases() -> list[str]:
    """The three newest Kubernetes releases whose schemas are installed, such as 1.37.0."""
    return list(dict.fromkeys(published.all_versions()))[-3:]


def faults(manifest: dict[str, Any], release: str) -> list[str]:
    """What `manifest` has that its schemas do not allow, as "spec.replicas: ..."; [] if nothing.

    Args:
        manifest: one object, of a built-in kind or of a kind with a CRD in CRDS.
        release: which Kubernetes, one of `releases()`.
    """
    identity = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    custom = _custom_kinds().get(identity)
    if custom is None:
        definition = _builtin_kinds(release).get(identity)
        if definition is None:
            return [f"no schema for kind {identity[1]} of {identity[0]}"]
        found = _against(definition, manifest, release)
    else:
        found = [*_errors(_custom_validator(*identity, release), manifest)]
        found = found or _embedded_faults(manifest, release)
    nulls = (f"{path}: null" for path, value in walk(manifest) if value is None)
    return sorted({*found, *nulls})


def _against(definition: str, value: Any, release: str, where: str = "") -> list[str]:
    return list(_errors(_validator(definition, release), value, where))


def _embedded_faults(value: Any, release: str, where: str = "") -> list[str]:
    """The faults of pod templates and Jobs inside a custom kind, by the built-in schemas."""
    found = []
    for key, child, path in children(value, where):
        spec = child.get("spec", {}) if key == "template" else {}
        if "containers" in spec:
            found += _against(POD_TEMPLATE, child, release, path)
        elif "template" in spec:
            found += _against(JOB_SPEC, spec, release, f"{path}.spec")
        found += _embedded_faults(child, release, path)
    return found


def _errors(validator: Any, value: Any, where: str = "") -> Iterator[str]:
    for error in validator.iter_errors(value):
        path = where
        for step in error.absolute_path:
            path += f"[{step}]" if isinstance(step, int) else f".{step}"
        yield f"{path.lstrip('.') or '(top)'}: {error.message[:300]}"


# Built-in kinds.


@functools.cache
def _definitions(release: str) -> dict[str, Any]:
    name = f"kubernetes-json-schema/v{release}-local-strict/_definitions.json"
    contents: dict[str, Any] = published.schema_contents(name, release)
    return contents


@functools.cache
def _registry(release: str) -> Any:
    return Resource.from_contents(_definitions(release)) @ Registry()


@functools.cache
def _builtin_kinds(release: str) -> dict[tuple[Any, Any], str]:
    """The name of the definition of each (apiVersion, kind)."""
    kinds = {}
    for name, definition in _definitions(release)["$defs"].items():
        for known in definition.get("x-kubernetes-group-version-kind", ()):
            version = f"{known['group']}/{known['version']}".lstrip("/")
            kinds[version, known["kind"]] = name
    return kinds


@functools.cache
def _validator(definition: str, release: str) -> Any:
    return _Validator({"$ref": f"{DEFINITIONS}#/$defs/{definition}"}, registry=_registry(release))


# Custom kinds.


@functools.cache
def _custom_kinds() -> dict[tuple[Any, Any], dict[str, Any]]:
    """The schema of each (apiVersion, kind) that a CRD serves."""
    kinds = {}
    for file in sorted(CRDS.glob("*/*.yaml")):
        crd = yaml.load(file.read_text("utf-8"), Loader=yaml.CSafeLoader)
        if crd["kind"] != "CustomResourceDefinition":
            continue
        for version in crd["spec"]["versions"]:
            if version["served"]:
                api = f"{crd['spec']['group']}/{version['name']}"
                schema = version["schema"]["openAPIV3Schema"]
                kinds[api, crd["spec"]["names"]["kind"]] = schema
    return kinds


def custom_schema(api_version: str, kind: str) -> dict[str, Any]:
    """The CRD's openAPIV3Schema of a kind; KeyError if no CRD serves it."""
    return _custom_kinds()[api_version, kind]


@functools.cache
def _custom_validator(api_version: str, kind: str, release: str) -> Any:
    schema = _strict(custom_schema(api_version, kind))
    # A CRD leaves metadata to the API server.
    schema["properties"]["metadata"] = {"$ref": f"{DEFINITIONS}#/$defs/{METADATA}"}
    return _Validator(schema, registry=_registry(release))


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A CRD's structural schema as JSON Schema that refuses what a server would prune.

    Rules: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions",
    structural schemas, pruning and defaulting.
    """
    strict = {key: value for key, value in schema.items() if key != "description"}
    properties = schema.get("properties", {})
    strict["properties"] = {name: _strict(child) for name, child in properties.items()}
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(schema["additionalProperties"])
    elif not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        strict["type"] = ["integer", "string"]
    # What has a default is filled in before it is looked for.
    required = (key for key in schema.get("required", ()) if "default" not in properties.get(key))
    strict["required"] = list(required)
    return strict


# Rules that JSON Schema lacks.


def _same_keys(_: Any, keys: list[str], items: Any, __: Any) -> Iterator[Any]:
    """Items of a list that is a map by `keys`: a server refuses one that is there twice."""
    seen = []
    for item in filter(_is_map, items if isinstance(items, list) else ()):
        identity = [item.get(key, LIST_KEY_DEFAULTS.get(key)) for key in keys]
        if identity in seen:
            yield jsonschema.ValidationError(f"{identity} is there twice")
        seen.append(identity)


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _set(_: Any, kind: str, items: Any, __: Any) -> Iterator[Any]:
    if kind == "set" and isinstance(items, list) and len(items) != len(set(map(str, items))):
        yield jsonschema.ValidationError(f"{items}: an item is there twice")


def _number_range(_: Any, name: str, value: Any, __: Any) -> Iterator[Any]:
    bits = {"int32": 31, "int64": 63}.get(name)
    if bits and isinstance(value, int) and not -(2**bits) <= value < 2**bits:
        yield jsonschema.ValidationError(f"{value}: not in {name}")


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "x-kubernetes-list-map-keys": _same_keys,
        "x-kubernetes-list-type": _set,
        "format": _number_range,
    },
)
