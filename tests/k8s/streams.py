"""Streams of the test's API server: watches and logs that are followed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from k8s.answers import ApiError
from k8s.discovery import Json, Resource
from k8s.podlogs import Line, Log, since
from k8s.storage import Key, matches

if TYPE_CHECKING:
    from k8s.apiserver import ApiServer

TRUE = ("1", "true", "True")
WATCH_LIMIT_S = 60.0


def watch_lines(
    api: ApiServer, resource: Resource, namespace: str, query: dict[str, str]
) -> Iterator[bytes]:
    """Events, a line each, from `resourceVersion` on; until `timeoutSeconds` have passed."""
    deadline = time.monotonic() + float(query.get("timeoutSeconds") or WATCH_LIMIT_S)
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    start = query.get("resourceVersion") or "0"
    with api.store.changed:
        begun = api.store.version if start == "0" else int(start)
        first = api.store.list(resource, namespace) if start == "0" else []
    for obj in first:
        if matches(obj, labels, fields):
            yield event("ADDED", obj)
    seen = begun
    while not api.closing.is_set():
        if seen < api.store.compacted:
            yield event("ERROR", ApiError(410, f"too old resource version: {seen}").status)
            return
        for version, type_, key, new, old in _news(api, seen, deadline):
            seen = version
            if key[:2] == (resource.group, resource.plural) and namespace in ("", key[2]):
                yield from _shown(type_, new, old, labels, fields)
        if time.monotonic() >= deadline:
            break
    if query.get("allowWatchBookmarks") in TRUE:
        metadata = {"resourceVersion": str(seen)}
        shell = {"kind": resource.kind, "apiVersion": resource.api_version}
        yield event("BOOKMARK", {**shell, "metadata": metadata})


def _news(
    api: ApiServer, seen: int, deadline: float
) -> list[tuple[int, str, Key, Json, Json | None]]:
    """What has happened since version `seen`; waited for until the deadline."""
    store = api.store
    with store.changed:
        store.changed.wait_for(
            lambda: store.version > seen or api.closing.is_set(),
            timeout=max(0.0, deadline - time.monotonic()),
        )
        return [row for row in store.log if row[0] > seen]


def _shown(type_: str, new: Json, old: Json | None, labels: str, fields: str) -> Iterator[bytes]:
    """The event as a watch with selectors sees it."""
    is_in = matches(new, labels, fields)
    was_in = old is not None and matches(old, labels, fields)
    if type_ == "MODIFIED" and is_in != was_in:
        type_ = "ADDED" if is_in else "DELETED"
    if is_in or was_in:
        yield event(type_, new)


def event(type_: str, obj: Json) -> bytes:
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def log_lines(
    api: ApiServer, namespace: str, pod: str, container: str, query: dict[str, str]
) -> Iterator[bytes]:
    """A container's log, a line each; with `follow` until the container has ended."""
    previous = query.get("previous") in TRUE
    log = api.logs.find(namespace, pod, container, previous=previous)
    start = since(log.lines, query.get("sinceTime", ""))
    if "tailLines" in query:
        start = max(start, len(log.lines) - int(query["tailLines"]))
    follow = query.get("follow") in TRUE and not previous
    rows = _followed(api, log, start) if follow else iter(log.lines[start:])
    return _texts(rows, query.get("timestamps") in TRUE, int(query.get("limitBytes") or 2**62))


def _followed(api: ApiServer, log: Log, start: int) -> Iterator[Line]:
    """Lines from number `start` on, as they come."""
    while not api.closing.is_set():
        with api.logs.changed:
            api.logs.changed.wait_for(_has_news(api, log, start))
            new, is_last = log.lines[start:], log.ended
        yield from new
        start += len(new)
        if is_last:
            return


def _has_news(api: ApiServer, log: Log, start: int) -> Callable[[], bool]:
    return lambda: len(log.lines) > start or log.ended or api.closing.is_set()


def _texts(rows: Iterator[Line], timestamps: bool, limit_bytes: int) -> Iterator[bytes]:
    for at, line in rows:
        text = (f"{at} ".encode() if timestamps else b"") + line + b"\n"
        yield text[:limit_bytes]
        limit_bytes -= len(text)
        if limit_bytes <= 0:
            return
