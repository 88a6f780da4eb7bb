"""Requests to an API server by the official client: with a time limit each, repeated where that
helps, and with every refusal in words.

The kinds are known (kubernetes_kinds), so nothing is discovered: no list of all groups is fetched,
and none is kept in the folder of temporary files, where another user could have put one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from orchestrator.backends import kubernetes_errors as errors
from orchestrator.backends.kubernetes_config import Access, access_of
from orchestrator.backends.kubernetes_errors import Answer, Asked, NotThere
from orchestrator.backends.kubernetes_kinds import BY_NAME, MANAGER, Kind
from orchestrator.errors import BackendError

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
# Before each repetition; after the last one it is over.
PAUSES_S = (0.3, 1.0, 3.0)
# A server that asks for more by Retry-After is not waited for.
RETRY_AFTER_LIMIT_S = 30.0
REPEATED = (429, 500, 502, 503, 504)
PAGE_LENGTH = 500  # kubectl's own --chunk-size
PAGES_LIMIT = 200

Query = Sequence[tuple[str, str]]


class Request(NamedTuple):
    """What is sent; timeout_s is the longest silence of the server, if it is another than usual."""

    method: str
    path: str
    query: Query = ()
    body: Any = None
    content_type: str | None = None
    timeout_s: float | None = None
    is_stream: bool = False


@dataclass
class Cluster:
    """A namespace of a cluster. Nothing is read or sent before the first request.

    Every method raises BackendError: NoAnswer where the server cannot be reached or is busy,
    NotThere, Conflict, AlreadyThere and Gone of kubernetes_errors, and others with words.

    Args:
        context: of the kubeconfig; its current one, or the pod's own account, without.
        namespace: the context's without.
        pauses_s: before each repetition of a request.
        read_timeout_s: longest silence of the server.
    """

    context: str | None = None
    wanted_namespace: str | None = None
    pauses_s: Sequence[float] = PAUSES_S
    read_timeout_s: float = READ_TIMEOUT_S
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def access(self) -> Access:
        """Where the server is, and who asks. Raises BackendError without a usable kubeconfig."""
        return access_of(self.context)

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
        """An object; None if there is none, or no such kind."""
        try:
            return self.get(kind, name)
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
            event = json.loads(line)
            if event.get("type") == "ERROR":
                status = event.get("object", {})
                answer = Answer.of(int(status.get("code") or 500), json.dumps(status))
                raise errors.refusal(asked, answer)
            yield event["type"], event["object"]

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

    def create(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object. Raises AlreadyThere if there is one of its name."""
        kind = kind_of(thing)
        query = _query(fieldManager=MANAGER, fieldValidation="Strict")
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
        body: dict[str, Any] = {"propagationPolicy": "Foreground"}
        body |= {} if uid is None else {"preconditions": {"uid": uid}}
        body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        request = self._at("DELETE", kind, name, body=body)
        try:
            self._json(self.asked("delete", kind, name), request)
        except errors.MissingKind:
            raise
        except NotThere:
            return

    def lines(
        self, asked: Asked, path: str, query: Query, timeout_s: float | None = None
    ) -> Iterator[bytes]:
        """The lines of an answer as they come, without line ends.

        timeout_s: longest silence. Raises NoAnswer where the connection breaks: the lines so far
        are good.
        """
        response = self.send(asked, Request("GET", path, query, None, None, timeout_s, True))
        try:
            yield from _lines(response)
        except _broken() as error:
            raise errors.unreachable(asked, error, self.access.host) from None
        finally:
            response.close()

    def asked(self, verb: str, kind: Kind, name: str = "") -> Asked:
        """A request in this namespace, as an error will name it."""
        return Asked(verb, kind, name, self.namespace, self.access.label)

    def send(self, asked: Asked, request: Request) -> Any:
        """Send a request, again where that may help; the JSON of its answer, or the response."""
        for pause_s in (*self.pauses_s, None):
            try:
                return self._sent(request)
            except _broken() as error:
                code = _code(error)
                wait_s = _wait_s(error, pause_s) if code == 0 or code in REPEATED else None
                if wait_s is None:
                    raise self._failure(asked, error, code) from None
            time.sleep(wait_s)
        raise AssertionError("the last pause is None")

    def _sent(self, request: Request) -> Any:
        """Send it once, or again with credentials read anew where they are refused."""
        client = self._client
        try:
            return _sent(client, request, self.read_timeout_s)
        except _broken() as error:
            if _code(error) != 401:
                raise
        self._reconnect(client)
        return _sent(self._client, request, self.read_timeout_s)

    def _failure(self, asked: Asked, error: Exception, code: int) -> BackendError:
        if code == 0:
            reason = getattr(error, "reason", None) or error
            return errors.unreachable(asked, reason, self.access.host)
        return errors.refusal(asked, Answer.of(code, getattr(error, "body", None)))

    @cached_property
    def _client(self) -> Any:
        with self._lock:
            return self.access.dynamic_client()

    def _reconnect(self, old: Any) -> None:
        """Read the credentials anew: a token may have been renewed, or a plug-in gives a new one.

        old: the client whose credentials were refused; another thread may have replaced it.
        """
        with self._lock:
            if self.__dict__.get("_client") is old:
                self.__dict__.pop("access", None)
                self.__dict__["_client"] = self.access.dynamic_client()

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


def _query(**parameters: str) -> list[tuple[str, str]]:
    """Those parameters that are not empty."""
    return [(name, value) for name, value in parameters.items() if value]


def _sent(client: Any, request: Request, read_timeout_s: float) -> Any:
    return client.request(
        request.method,
        request.path,
        body=request.body,
        query_params=list(request.query),
        content_type=request.content_type,
        serialize=not request.is_stream,
        serializer=lambda _, content: content,
        _request_timeout=(CONNECT_TIMEOUT_S, request.timeout_s or read_timeout_s),
    )


def _broken() -> tuple[type[Exception], ...]:
    """What the client raises where there is no answer of success."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    return ApiException, HTTPError, OSError


def _code(error: Exception) -> int:
    """The HTTP code; 0 where there was no answer."""
    return int(getattr(error, "status", 0) or 0)


def _wait_s(error: Exception, pause_s: float | None) -> float | None:
    """How long to wait before the request is sent again; None if it is not."""
    headers = getattr(error, "headers", None) or {}
    wanted = headers.get("Retry-After", "")
    wanted_s = float(wanted) if wanted.isdecimal() else 0.0
    if pause_s is None or wanted_s > RETRY_AFTER_LIMIT_S:
        return None
    return max(pause_s, wanted_s)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest
