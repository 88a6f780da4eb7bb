"""What differs between an object in a cluster and what a submit would make of it, without what the
API server and controllers write themselves."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from orchestrator.yaml_text import yaml_text

# Written by the API server alone (apimachinery, ObjectMeta), by kubectl, or when objects are made.
SERVER_FIELDS = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
KUBECTL_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
# Kueue sets `suspend` of what has this label (kueue.sigs.k8s.io, "Run workloads").
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

Tree = Mapping[str, Any]


def compared(live: Tree | None, wanted: Tree) -> tuple[str | None, str]:
    """Return both as YAML text in which only real differences are left; None where there is no
    such object.

    Args:
        live: the object as it is, None if there is none.
        wanted: the API server's answer to a dry run, which has all defaults; or the manifest
            itself where the server would refuse the change. Then the live object is looked at in
            the fields of the manifest alone.
    """
    is_answer = "uid" in wanted["metadata"]
    is_queued = QUEUE_LABEL in wanted["metadata"].get("labels", {})
    after = _quiet(wanted, is_queued)
    if live is None:
        return None, yaml_text(after)
    before = _quiet(live, is_queued)
    return yaml_text(before if is_answer else _in_fields_of(after, before)), yaml_text(after)


def _quiet(tree: Tree, is_queued: bool) -> dict[str, Any]:
    """A copy without what others write, keys in alphabetic order."""
    quiet = copy.deepcopy({key: value for key, value in tree.items() if key != "status"})
    metadata = quiet["metadata"]
    for field in SERVER_FIELDS:
        metadata.pop(field, None)
    annotations = metadata.get("annotations", {})
    annotations.pop(KUBECTL_ANNOTATION, None)
    if not annotations:
        metadata.pop("annotations", None)
    spec = quiet.get("spec", {})
    for place in (spec, spec.get("runPolicy", {})) if is_queued else ():
        place.pop("suspend", None)
    return _in_order(quiet)  # type: ignore[no-any-return]


def _in_order(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _in_order(tree[key]) for key in sorted(tree)}
    return [_in_order(item) for item in tree] if isinstance(tree, list) else tree


def _in_fields_of(shape: Any, tree: Any) -> Any:
    """The part of a tree that has a counterpart in another one."""
    if isinstance(shape, dict) and isinstance(tree, dict):
        return {key: _in_fields_of(shape[key], tree[key]) for key in shape if key in tree}
    if isinstance(shape, list) and isinstance(tree, list) and len(shape) == len(tree):
        return [_in_fields_of(s, t) for s, t in zip(shape, tree, strict=True)]
    return tree
