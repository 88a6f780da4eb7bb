"""HTTP of the test's API server: one request to one answer or one stream of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from k8s import discovery, websocket
from k8s.answers import ApiError, forbidden
from k8s.apply import apply, merged, updated
from k8s.discovery import Json, Resource
from k8s.storage import matches
from k8s.streams import log_lines, watch_lines

if TYPE_CHECKING:
    from k8s.apiserver import ApiServer, Fault

WRITES = ("create", "update", "patch")
MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    @property
    def api(self) -> ApiServer:
        return self.server.owner  # type: ignore[attr-defined,no-any-return]

    def _serve(self) -> None:
        request = f"{self.command} {self.path}"
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.api.requests.append(request)
        fault = self.api.fault_for(request)
        try:
            if fault is not None and not self._suffer(fault):
                return
            self._answer(fault)
        except ApiError as error:
            self._refuse(error, fault.retry_after_s if fault else None)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _suffer(self, fault: Fault) -> bool:
        """Whether the request is still to be answered."""
        if fault.slow_s:
            self.api.closing.wait(fault.slow_s)
        if fault.status:
            raise ApiError(fault.status, fault.message or "as the test wants it")
        if fault.drop:
            self.close_connection = True
        return not fault.drop

    def _answer(self, fault: Fault | None) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.api.token}":
            raise ApiError(401, "Unauthorized")
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query, True).items()}
        found = discovery.answer(url.path.rstrip("/"), self.api.store.resources)
        if found is not None:
            return self._send(200, found)
        resource, self.namespace, self.name, sub = self._route(url.path)
        return self._act(resource, sub, fault)

    def _route(self, path: str) -> tuple[Resource, str, str, str]:
        """Resource, namespace, name and subresource of a path; "" for what it lacks."""
        first, *parts = [unquote(part) for part in path.strip("/").split("/")]
        group = parts.pop(0) if first == "apis" else ""
        version, *parts = parts or [""]
        namespace = ""
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, sub, *_ = [*parts, "", "", ""]
        for resource in self.api.store.resources:
            if (resource.group, resource.version, resource.plural) == (group, version, plural):
                return resource, namespace, name, sub
        if any((r.group, r.version) == (group, version) for r in self.api.store.resources):
            raise ApiError(404, "the server could not find the requested resource")
        raise ApiError(404, "404 page not found", is_text=True)

    def _act(self, resource: Resource, sub: str, fault: Fault | None) -> None:
        many = not self.name
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(self.command)
        if verb is None:
            verb = {"GET": "list" if many else "get", "DELETE": "delete"}[self.command]
            verb = "watch" if many and self.query.get("watch") in ("1", "true", "True") else verb
        self._permit(resource, verb, sub)
        if resource.plural == "selfsubjectaccessreviews":
            return self._send(201, self._review())
        if sub in ("log", "exec"):
            return self._pod(resource, sub, fault)
        if verb == "watch":
            lines = watch_lines(self.api, resource, self.namespace, self.query)
            return self._stream(lines, fault, "application/json")
        code, answer = getattr(self, f"_{verb}")(resource, *([sub] if verb in WRITES else []))
        return self._send(code, answer)

    def _permit(self, resource: Resource, verb: str, sub: str) -> None:
        plural = f"{resource.plural}/{sub}" if sub else resource.plural
        if {(verb, plural), ("*", plural), (verb, "*")} & self.api.forbidden:
            raise forbidden(resource, verb, self.namespace, self.name)

    def _review(self) -> Json:
        review = self._given()
        asked = review["spec"].get("resourceAttributes", {})
        sub = f"/{asked['subresource']}" if asked.get("subresource") else ""
        plural = f"{asked.get('resource')}{sub}"
        denied = {(asked.get("verb"), plural), ("*", plural)} & self.api.forbidden
        return {**review, "status": {"allowed": not denied}}

    def _pod(self, resource: Resource, sub: str, fault: Fault | None) -> None:
        pod = self.api.store.get(resource, self.namespace, self.name)
        names = [c["name"] for c in pod.get("spec", {}).get("containers", [])]
        container = self.query.get("container") or (names[0] if len(names) == 1 else "")
        if not container:
            raise ApiError(400, f"a container name must be specified for pod {self.name}")
        if sub == "exec":
            phase = pod.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                text = "cannot exec into a container in a completed pod; current phase is"
                raise ApiError(400, f"{text} {phase}")
            argv = parse_qs(urlsplit(self.path).query, True)["command"]
            enter = self.api.enter(self.namespace, self.name)
            return websocket.exec_(self, [*enter, *argv], self.api.exec_folder)
        lines = log_lines(self.api, self.namespace, self.name, container, self.query)
        return self._stream(lines, fault, "text/plain")

    def _get(self, resource: Resource) -> tuple[int, Json]:
        return 200, self.api.store.get(resource, self.namespace, self.name)

    def _list(self, resource: Resource) -> tuple[int, Json]:
        store = self.api.store
        with store.changed:
            rows = store.list(resource, self.namespace)
            version = str(store.version)
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        rows = [row for row in rows if matches(row, labels, fields)]
        start = int(self.query.get("continue") or 0)
        end = start + int(self.query.get("limit") or len(rows) or 1)
        more = {"continue": str(end)} if end < len(rows) else {}
        shell = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return 200, {
            **shell,
            "metadata": {"resourceVersion": version, **more},
            "items": rows[start:end],
        }

    def _create(self, resource: Resource, sub: str) -> tuple[int, Json]:
        given = {key: value for key, value in self._given().items() if key != "status"}
        if resource.namespaced and not self.namespace:
            raise ApiError(404, "the server could not find the requested resource")
        given = updated(None, {"apiVersion": resource.api_version, **given}, self._manager)
        made = self.api.store.create(resource, self.namespace, given, is_dry=self._is_dry)
        return 201, made

    def _update(self, resource: Resource, sub: str) -> tuple[int, Json]:
        return 200, self._write(resource, sub, self._given())

    def _patch(self, resource: Resource, sub: str) -> tuple[int, Json]:
        type_ = self.headers.get("Content-Type", "").partition(";")[0]
        store = self.api.store
        with store.changed:
            if type_ == "application/apply-patch+yaml":
                return self._apply(resource)
            if type_ not in MERGES:
                raise ApiError(415, f"the body of the request was in an unknown format: {type_}")
            old = store.get(resource, self.namespace, self.name)
            return 200, self._write(resource, sub, merged(old, self._given()))

    def _apply(self, resource: Resource) -> tuple[int, Json]:
        store, given = self.api.store, self._given()
        if not self.query.get("fieldManager"):
            raise ApiError(422, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        if given.get("metadata", {}).get("managedFields"):
            raise ApiError(400, "metadata.managedFields must be nil")
        try:
            old = store.get(resource, self.namespace, self.name)
        except ApiError:
            old = None
        force = self.query.get("force") in ("true", "True")
        new = apply(old, given, self._manager, force=force)
        write = store.update if old else store.create
        return (200 if old else 201), write(resource, self.namespace, new, is_dry=self._is_dry)

    def _write(self, resource: Resource, sub: str, new: Json) -> Json:
        """Store what was given: with a subresource its part alone, else all but the status."""
        store = self.api.store
        with store.changed:
            old = store.get(resource, self.namespace, self.name)
            kept = {**old, "status": new.get("status", {})} if sub == "status" else new
            if sub != "status" and "status" in resource.subresources:
                kept = {key: value for key, value in new.items() if key != "status"}
                kept |= {"status": old["status"]} if "status" in old else {}
            kept = updated(old, kept, self._manager)
            return store.update(resource, self.namespace, kept, is_dry=self._is_dry)

    def _delete(self, resource: Resource) -> tuple[int, Json]:
        options = self._given() if self.body else {}
        grace = options.get("gracePeriodSeconds", self.query.get("gracePeriodSeconds"))
        policy = options.get("propagationPolicy", self.query.get("propagationPolicy"))
        store = self.api.store
        if not self.name:
            raise ApiError(405, "the server does not allow this method", "MethodNotAllowed")
        if self._is_dry:
            return 200, store.get(resource, self.namespace, self.name)
        gone = store.delete(
            resource,
            self.namespace,
            self.name,
            policy=policy or "Background",
            grace_s=int(grace) if grace is not None else None,
            uid=options.get("preconditions", {}).get("uid"),
        )
        return 200, gone

    @property
    def _is_dry(self) -> bool:
        return self.query.get("dryRun") == "All"

    @property
    def _manager(self) -> str:
        return self.query.get("fieldManager") or "unknown"

    def _given(self) -> Json:
        try:
            given: Any = yaml.safe_load(self.body or b"{}")
        except yaml.YAMLError as error:
            raise ApiError(400, f"the object provided is unrecognized: {error}") from None
        return given if isinstance(given, dict) else {}

    def _refuse(self, error: ApiError, retry_after_s: int | None) -> None:
        if error.is_text:
            self._write_out(error.code, "text/plain", f"{error.message}\n".encode())
        else:
            self._send(error.code, error.status, retry_after_s)

    def _send(self, code: int, answer: Json, retry_after_s: int | None = None) -> None:
        self._write_out(code, "application/json", json.dumps(answer).encode(), retry_after_s)

    def _write_out(
        self, code: int, type_: str, data: bytes, retry_after_s: int | None = None
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", type_)
        self.send_header("Content-Length", str(len(data)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, lines: Iterator[bytes], fault: Fault | None, type_: str) -> None:
        """Chunks as they come; a fault cuts the connection without the last chunk."""
        self.send_response(200)
        self.send_header("Content-Type", type_)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        limit = fault.cut_after_lines if fault else None
        for count, line in enumerate(lines):
            if count == limit:
                break
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()
        if limit is None:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True
