"""Objects of a cluster: read, listed, watched, applied, deleted.

The kinds are known (kubernetes_kinds), so nothing is discovered: no list of all groups is fetched,
and none is kept in the folder of temporary files, where another user could have put one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.backends import kubernetes_errors as errors
from orchestrator.backends.kubernetes_errors import Answer, Asked, NotThere
from orchestrator.backends.kubernetes_kinds import BY_NAME, MANAGER, Kind
from orchestrator.backends.kubernetes_transport import Request, Transport
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError

PAGE_LENGTH = 500  # kubectl's own --chunk-size
PAGES_LIMIT = 200
AFTER_BREAK_S = 1.0  # a watch that breaks at once is not begun again at full speed


@dataclass(kw_only=True)
class Cluster(Transport):
    """A namespace of a cluster.

    Every method raises BackendError: NoAnswer where the server cannot be reached or is busy,
    NotThere, Conflict, AlreadyThere and Gone of kubernetes_errors, and others with words.

    Args:
        wanted_namespace: the context's without.
    """

    wanted_namespace: str | None = None

    @property
    def namespace(self) -> str:
        """The namespace that is worked in."""
        return self.wanted_namespace or self.access.namespace

    @property
    def label(self) -> str:
        """The cluster and namespace, as a message names them."""
        return f"{self.access.label}, namespace {self.namespace}"

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """An object. Raises NotThere if there is none."""
        return self._json(self.asked("get", kind, name), self._at("GET", kind, name))

    def find(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """An object; None if there is none."""
        try:
            return self.get(kind, name)
        except errors.MissingKind:
            raise
        except NotThere:
            return None

    def objects(self, kind: Kind, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in the namespace, in pages.

        Args:
            labels: a label selector.
            fields: a field selector.
        """
        return self.snapshot(kind, labels, fields)[0]

    def snapshot(
        self, kind: Kind, labels: str = "", fields: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        """All objects of a kind, and the version from which a watch goes on."""
        found: list[dict[str, Any]] = []
        version = token = ""
        for _ in range(PAGES_LIMIT):
            query = _query(labelSelector=labels, fieldSelector=fields, limit=str(PAGE_LENGTH))
            query += _query(**{"continue": token})
            page = self._json(self.asked("list", kind), self._at("GET", kind, query=query))
            found += page.get("items") or []
            about = page.get("metadata", {})
            version, token = about.get("resourceVersion", ""), about.get("continue", "")
            if not token:
                break
        return found, version

    def watch(
        self, kind: Kind, version: str, labels: str = "", *, timeout_s: float = 60.0
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What happens to objects after `version`: (ADDED, object) and so on, for `timeout_s`.

        Raises Gone where the version is too old: list again.
        """
        query = _query(watch="true", resourceVersion=version, labelSelector=labels,
                       allowWatchBookmarks="true", timeoutSeconds=f"{timeout_s:.0f}")  # fmt: skip
        asked = self.asked("watch", kind)
        for line in self.lines(
            asked, kind.path(self.namespace), query, timeout_s + self.read_timeout_s
        ):
            event = _event(asked, line)
            if event.get("type") == "ERROR":
                status = event.get("object", {})
                answer = Answer.of(int(status.get("code") or 500), json.dumps(status))
                raise errors.refusal(asked, answer)
            yield event["type"], event["object"]

    def await_change(self, kind: Kind, version: str, labels: str, timeout_s: float) -> None:
        """Return at the next change of such objects after `version`, or after a time in seconds."""
        try:
            for type_, _ in self.watch(kind, version, labels, timeout_s=max(1.0, timeout_s)):
                if type_ != "BOOKMARK":
                    return
        except errors.Gone:  # whoever waits lists them anew
            return
        except NoAnswer:
            time.sleep(min(timeout_s, AFTER_BREAK_S))

    def apply(
        self, thing: Mapping[str, Any], *, dry_run: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Server-side apply, strict; what the server makes of it.

        Args:
            dry_run: change nothing.
            force: take fields that other managers own.
        """
        kind, name = kind_of(thing), thing["metadata"]["name"]
        query = _query(fieldManager=MANAGER, fieldValidation="Strict", force=str(force).lower(),
                       dryRun="All" if dry_run else "")  # fmt: skip
        request = self._at("PATCH", kind, name, query=query, body=thing,
                           content_type="application/apply-patch+yaml")  # fmt: skip
        return self._json(self.asked("patch", kind, name), request)

    def create(self, thing: Mapping[str, Any], manager: str = MANAGER) -> dict[str, Any]:
        """Make an object. Raises AlreadyThere if there is one of its name."""
        kind = kind_of(thing)
        query = _query(fieldManager=manager, fieldValidation="Strict")
        asked = self.asked("create", kind, thing["metadata"]["name"])
        return self._json(asked, self._at("POST", kind, query=query, body=thing))

    def patch(self, kind: Kind, name: str, part: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a part into an object (RFC 7386)."""
        request = self._at("PATCH", kind, name, query=_query(fieldManager=MANAGER), body=part,
                           content_type="application/merge-patch+json")  # fmt: skip
        return self._json(self.asked("patch", kind, name), request)

    def delete(
        self, kind: Kind, name: str, *, uid: str | None = None, grace_s: int | None = None
    ) -> None:
        """Delete an object and what it owns; none is no error. That it is gone comes later.

        Args:
            uid: only the object that has it.
            grace_s: 0 to kill a pod at once; the pod's own without.
        """
        foreground = {"propagationPolicy": "Foreground"}  # it stays until all that it owns is gone
        body: dict[str, Any] = foreground if grace_s is None else {"gracePeriodSeconds": grace_s}
        body |= {} if uid is None else {"preconditions": {"uid": uid}}
        request = self._at("DELETE", kind, name, body=body)
        try:
            self._json(self.asked("delete", kind, name), request)
        except errors.MissingKind:
            raise
        except NotThere:
            return

    def asked(self, verb: str, kind: Kind, name: str = "") -> Asked:
        """A request in this namespace, as an error will name it."""
        return Asked(verb, kind, name, self.namespace, self.access.label)

    def _at(self, method: str, kind: Kind, name: str = "", **more: Any) -> Request:
        return Request(method, kind.path(self.namespace, name), **more)

    def _json(self, asked: Asked, request: Request) -> dict[str, Any]:
        content = self.send(asked, request)
        if not isinstance(content, dict):
            raise BackendError(f"{asked}: the answer of {self.access.host} is no Kubernetes object")
        return content


def kind_of(thing: Mapping[str, Any]) -> Kind:
    """The kind of an object. Raises BackendError for one that is not known here."""
    key = (str(thing.get("apiVersion")), str(thing.get("kind")))
    if key not in BY_NAME:
        raise BackendError(f"{' '.join(key)}: no kind of object that is known here")
    return BY_NAME[key]


def _event(asked: Asked, line: bytes) -> dict[str, Any]:
    """An event of a watch, which may have been cut off."""
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not {"type", "object"} <= content.keys():
        raise NoAnswer(f"{asked}: the answer was cut off")
    return content


def _query(**parameters: str) -> list[tuple[str, str]]:
    """Those parameters that are not empty."""
    return [(name, value) for name, value in parameters.items() if value]
