"""An API server of Kubernetes in this process: real HTTP, discovery, objects, watches and logs.

    with ApiServer(tmp_path) as server:
        server.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}})
        ... KUBECONFIG=server.kubeconfig ...

No controller runs: a test is the controller, by `server.store.reactions`, `set_status` and
`create`. See storage.py for refusals (`server.store.admissions`) and 410 (`server.store.compact`).
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from k8s.discovery import RESOURCES, Json, Resource
from k8s.http import Handler
from k8s.podlogs import PodLogs
from k8s.storage import Storage

TOKEN = "token-of-the-tests"


@dataclass
class Fault:
    """What goes wrong with the next requests that a pattern finds; see ApiServer.fail."""

    pattern: re.Pattern[str]
    times: int
    status: int = 0
    message: str = ""
    retry_after_s: int | None = None
    drop: bool = False
    cut_after_lines: int | None = None
    slow_s: float = 0.0


class ApiServer:
    """The server; its port is free and its kubeconfig is written into `folder`.

    Args:
        without: API groups that it does not have, such as kubeflow.org.

    Attributes:
        kubeconfig: path of its kubeconfig; context `test`, namespace `default`.
        requests: `METHOD PATH?QUERY` of each request, in order.
        forbidden: (verb, plural) that the user may not; ("*", plural) for all verbs.
        token: what the kubeconfig's user has; set another one, and each request gets 401.
        exec_folder: working folder of the processes that `exec` starts.
        enter: the words before such a command, by the namespace and name of its pod.
    """

    def __init__(self, folder: Path, without: tuple[str, ...] = ()) -> None:
        self.store = Storage(tuple(r for r in RESOURCES if r.group not in without))
        self.logs = PodLogs()
        self.requests: list[str] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.faults: list[Fault] = []
        self.token = TOKEN
        self.exec_folder = str(folder)
        self.enter: Callable[[str, str], list[str]] = lambda _namespace, _pod: []
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.http = _Http(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.kubeconfig = folder / f"kubeconfig-{self.http.server_address[1]}"
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self.url)))
        self.store.reactions.append(self._forget_logs)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))

    def __enter__(self) -> ApiServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for condition in (self.store.changed, self.logs.changed):
            with condition:
                condition.notify_all()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def fail(
        self,
        pattern: str,
        *,
        times: int = 1,
        status: int = 0,
        message: str = "",
        retry_after_s: int | None = None,
        drop: bool = False,
        cut_after_lines: int | None = None,
        slow_s: float = 0.0,
    ) -> Fault:
        """Let the next requests go wrong whose `METHOD PATH?QUERY` has the pattern in it.

        Args:
            times: how many of them.
            status: answer with this code and a Status with `message`.
            drop: close the connection without an answer.
            cut_after_lines: a watch or a log is cut off after so many lines.
            slow_s: seconds before the (right) answer.
        """
        fault = Fault(re.compile(pattern), times, status, message, retry_after_s, drop,
                      cut_after_lines, slow_s)  # fmt: skip
        with self.lock:
            self.faults.append(fault)
        return fault

    def fault_for(self, request: str) -> Fault | None:
        """The fault that this request meets, if any, which counts it."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.pattern.search(request):
                    fault.times -= 1
                    return fault
        return None

    def create(self, obj: Json, namespace: str = "default") -> Json:
        """Store an object, its status too."""
        resource = self.store.resource_of(obj)
        return self.store.create(resource, obj.get("metadata", {}).get("namespace", namespace), obj)

    def get(self, plural: str, name: str, namespace: str = "default") -> Json:
        return self.store.get(self._resource(plural), namespace, name)

    def list(self, plural: str, namespace: str = "") -> list[Json]:
        """All objects of a kind, of all namespaces by default."""
        return self.store.list(self._resource(plural), namespace)

    def set(self, plural: str, name: str, namespace: str = "default", **parts: Any) -> Json:
        """Replace parts of an object, such as status={...} or spec={...}."""
        with self.store.changed:
            obj = self.get(plural, name, namespace)
            return self.store.update(self._resource(plural), namespace, {**obj, **parts})

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Remove an object at once, with all that it owns."""
        self.store.delete(self._resource(plural), namespace, name, grace_s=0)

    def _resource(self, plural: str) -> Resource:
        """`plural`, or plural.group where two groups have one."""
        name, _, group = plural.partition(".")
        return self.store.resource(name, group or None)

    def _forget_logs(self, type_: str, obj: Json) -> None:
        if type_ == "DELETED" and obj["kind"] == "Pod":
            self.logs.remove(obj["metadata"]["namespace"], obj["metadata"]["name"])


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    owner: ApiServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away, as one does that waits no longer, is no error here."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _kubeconfig(url: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "tester", "user": {"token": TOKEN}}],
        "contexts": [
            {
                "name": "test",
                "context": {"cluster": "test", "user": "tester", "namespace": "default"},
            }
        ],
    }
