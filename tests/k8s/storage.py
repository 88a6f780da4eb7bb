"""The objects of the test's API server: stored as they are given, with a server's own fields."""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from k8s.answers import ApiError, exists, modified, not_found
from k8s.discovery import Json, Resource

Key = tuple[str, str, str, str]  # group, plural, namespace, name
# (new object, old object or None) -> the refusal, as a webhook, a quota or a validation gives it
Admission = Callable[[Json, Json | None], ApiError | None]
# (ADDED, MODIFIED or DELETED; the object), after each change: where a test acts as a controller
Reaction = Callable[[str, Json], None]
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # RFC 1123 subdomain


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Storage:
    """Thread-safe; every change has its own resourceVersion.

    Attributes:
        admissions: asked before each write.
        reactions: told after each change.
        graceful_pods: a deleted pod stays, with a deletionTimestamp, until the test removes it.
    """

    def __init__(self, resources: tuple[Resource, ...]) -> None:
        self.resources = resources
        self.changed = threading.Condition(threading.RLock())
        self.objects: dict[Key, Json] = {}
        self.log: list[tuple[int, str, Key, Json, Json | None]] = []  # the last two: new, old
        self.version = 1
        self.compacted = 0
        self.admissions: list[Admission] = []
        self.reactions: list[Reaction] = []
        self.graceful_pods = False

    def resource(self, plural: str, group: str | None = None) -> Resource:
        """By plural name; the group only where two have the same."""
        found = [r for r in self.resources if r.plural == plural and group in (None, r.group)]
        return found[0]

    def resource_of(self, obj: Json) -> Resource:
        kind = (obj["apiVersion"], obj["kind"])
        return next(r for r in self.resources if (r.api_version, r.kind) == kind)

    def compact(self) -> None:
        """Forget the past: a watch from any earlier version gets 410."""
        with self.changed:
            self.version += 1
            self.compacted = self.version

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        with self.changed:
            found = self.objects.get(_key(resource, namespace, name))
            if found is None:
                raise not_found(resource, name)
            return copy.deepcopy(found)

    def list(self, resource: Resource, namespace: str) -> list[Json]:
        """All of a kind, of one namespace or, with "", of all."""
        with self.changed:
            keys = sorted(key for key in self.objects if _is_of(key, resource, namespace))
            return [copy.deepcopy(self.objects[key]) for key in keys]

    def create(
        self, resource: Resource, namespace: str, obj: Json, *, is_dry: bool = False
    ) -> Json:
        with self.changed:
            name = obj.get("metadata", {}).get("name", "")
            if not NAME.fullmatch(name) or len(name) > 253:
                text = f'{resource.kind}.{resource.group} "{name}" is invalid: metadata.name: '
                raise ApiError(422, f"{text}Invalid value: {name!r}: a lowercase RFC 1123 name")
            if _key(resource, namespace, name) in self.objects:
                raise exists(resource, name)
            new = copy.deepcopy(obj)
            new.update(apiVersion=resource.api_version, kind=resource.kind)
            new["metadata"].update(uid=str(uuid.uuid4()), generation=1)
            new["metadata"].setdefault("creationTimestamp", now())
            if resource.namespaced:
                new["metadata"]["namespace"] = namespace
            return self._put(resource, new, None, is_dry)

    def update(
        self, resource: Resource, namespace: str, obj: Json, *, is_dry: bool = False
    ) -> Json:
        """Replace an object; a resourceVersion that is given must be the newest."""
        with self.changed:
            name = obj["metadata"]["name"]
            old = self.get(resource, namespace, name)
            given = obj["metadata"].get("resourceVersion")
            if given not in (None, "", old["metadata"]["resourceVersion"]):
                raise modified(resource, name)
            if obj["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
                raise modified(resource, name)
            new = copy.deepcopy(obj)
            for key in ("uid", "creationTimestamp", "namespace", "generation", "deletionTimestamp"):
                if key in old["metadata"]:
                    new["metadata"][key] = old["metadata"][key]
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            return self._put(resource, new, old, is_dry)

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        policy: str = "Background",
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> Json:
        """Delete an object and, unless `policy` is Orphan, what it owns."""
        with self.changed:
            old = self.get(resource, namespace, name)
            if uid not in (None, old["metadata"]["uid"]):
                raise modified(resource, name)
            waits = resource.plural == "pods" and self.graceful_pods and grace_s != 0
            if waits or old["metadata"].get("finalizers"):
                new = copy.deepcopy(old)
                new["metadata"].setdefault("deletionTimestamp", now())
                return self._put(resource, new, old, is_dry=False, is_admitted=True)
            return self._remove(resource, old, policy)

    def _put(
        self,
        resource: Resource,
        new: Json,
        old: Json | None,
        is_dry: bool,
        is_admitted: bool = False,
    ) -> Json:
        for admit in [] if is_admitted else self.admissions:
            if refusal := admit(new, old):
                raise refusal
        metadata = new["metadata"]
        if old and _same(new, old):
            return old
        if old and old["metadata"].get("deletionTimestamp") and not metadata.get("finalizers"):
            was_held = old["metadata"].get("finalizers")
            if was_held and not is_dry:
                return self._remove(resource, new, "Background")
        if not is_dry:
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            key = _key(resource, metadata.get("namespace", ""), metadata["name"])
            self.objects[key] = copy.deepcopy(new)
            self._tell("MODIFIED" if old else "ADDED", key, new, old)
        return copy.deepcopy(new)

    def _remove(self, resource: Resource, old: Json, policy: str) -> Json:
        metadata = old["metadata"]
        key = _key(resource, metadata.get("namespace", ""), metadata["name"])
        del self.objects[key]
        self.version += 1
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", key, gone, old)
        self._collect(metadata["uid"], policy)
        return gone

    def _collect(self, uid: str, policy: str) -> None:
        """What a real cluster's garbage collector does with the dependents of `uid`."""
        for key, obj in list(self.objects.items()):
            references = obj["metadata"].get("ownerReferences", [])
            left = [r for r in references if r.get("uid") != uid]
            if key not in self.objects or len(left) == len(references):
                continue
            resource = self.resource(key[1], key[0])
            if policy == "Orphan" or left:
                self._put(resource, with_owners_left(obj, left), obj, False, is_admitted=True)
            else:
                self.delete(resource, key[2], key[3])

    def _tell(self, type_: str, key: Key, new: Json, old: Json | None) -> None:
        self.log.append((self.version, type_, key, copy.deepcopy(new), copy.deepcopy(old)))
        self.changed.notify_all()
        for react in self.reactions:
            react(type_, copy.deepcopy(new))


def with_owners_left(obj: Json, references: list[Json]) -> Json:
    new = copy.deepcopy(obj)
    new["metadata"]["ownerReferences"] = references
    return new


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return resource.group, resource.plural, namespace if resource.namespaced else "", name


def _is_of(key: Key, resource: Resource, namespace: str) -> bool:
    return key[:2] == (resource.group, resource.plural) and namespace in ("", key[2])


def _same(new: Json, old: Json) -> bool:
    """Whether nothing would change; then a server keeps the resourceVersion."""

    def bare(obj: Json) -> Json:
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}

    return bare(new) == bare(old)


def matches(obj: Json, labels: str, fields: str) -> bool:
    """Whether an object meets a label selector and a field selector."""
    have = obj["metadata"].get("labels", {})
    return all(_label(have, term) for term in re.split(r",(?![^(]*\))", labels) if term) and all(
        _field(obj, term) for term in fields.split(",") if term
    )


def _label(have: dict[str, str], term: str) -> bool:
    if match := re.fullmatch(r"\s*(\S+)\s+(in|notin)\s+\((.*)\)\s*", term):
        values = [value.strip() for value in match[3].split(",")]
        return (have.get(match[1]) in values) == (match[2] == "in")
    key, operator, value = re.fullmatch(r"\s*(!?[^=!\s]+)\s*(==|=|!=|)\s*(\S*)\s*", term).groups()  # type: ignore[union-attr]
    if not operator:
        return key[1:] not in have if key.startswith("!") else key in have
    return (have.get(key) == value) == (operator != "!=")


def _field(obj: Json, term: str) -> bool:
    path, operator, value = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term).groups()  # type: ignore[union-attr]
    found: Any = obj
    for part in path.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return (str(found) == value) == (operator != "!=")
