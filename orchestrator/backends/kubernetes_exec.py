"""Shell scripts in a pod of a run, by the API server's `exec`, as backends/ssh.py runs them on
another machine."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_config import unlogged
from orchestrator.backends.kubernetes_errors import Answer, Asked, NotThere, refusal, unreachable
from orchestrator.backends.kubernetes_kinds import POD, RUN_LABEL, Target
from orchestrator.backends.kubernetes_pods import Phase, newest, pod_facts
from orchestrator.backends.site import COMMAND_TIMEOUT_S, Completed, NoAnswer, no_answer
from orchestrator.errors import BackendError

# Kubernetes' pkg/cri/streaming/remotecommand: the first byte of a message is its channel.
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
PIECE_BYTES = 32768
SEND_TIMEOUT_S = 30.0
POLL_S = 1.0
PING_S = 15.0  # load balancers end a connection that is silent for a minute
HANDSHAKE = re.compile(r"Handshake status (\d+)(?:.*-\+-\+- (b['\"].*['\"]))?", re.DOTALL)


class NoPod(BackendError):
    """No pod of the run runs, or none may be entered."""


@dataclass
class PodShell:
    """A POSIX shell in a running pod of a run: node 0's where that runs.

    Args:
        cluster: where the run is.
        target: what it is.
        run: its name.
        reader: a pod for this alone (kubernetes_reader), which is taken where it is given.
    """

    cluster: Cluster
    target: Target
    run: str
    reader: str = ""
    _pod: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """The place, as a message names it."""
        return f"pod {self._pod} ({self.cluster.label})"

    def shell(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_TIMEOUT_S,
        what: str = "a command",
    ) -> Completed:
        """Run a script and return its exit code and output.

        Args:
            script: it may leave by `exit` or `exec`.
            stdin: what the script finds on its standard input, which does not end there: it takes
                as much as it knows of.
            what: the script, as a message names it.

        Raises NoPod where there is no pod for it, and BackendError if it does not end in time.
        """
        for is_new in (False, True):
            pod = self._choose() if is_new or not self._pod else self._pod
            try:
                return self._exec(pod, script, stdin, timeout_s, what)
            except NotThere:
                self._pod = ""
                if is_new:
                    raise NoPod(f"{self.cluster.label}: the pods of {self.run} are gone") from None
        raise AssertionError("the second pod was the last")

    def _choose(self) -> str:
        """The running pod of the first node. Raises NoPod if none runs."""
        if self.reader:
            self._pod = self.reader
            return self._pod
        pods = self.cluster.objects(POD, f"{RUN_LABEL}={self.run}")
        facts = newest(pod_facts(self.target, pod) for pod in pods)
        running = [facts[node].name for node in sorted(facts) if facts[node].phase is Phase.RUNNING]
        if not running:
            raise NoPod(f"{self.cluster.label}: no pod of {self.run} runs")
        self._pod = running[0]
        return self._pod

    def _exec(self, pod: str, script: str, stdin: bytes, timeout_s: float, what: str) -> Completed:
        # The script comes by standard input, since a URL has little room; as one compound command,
        # so that it is none at all if it is cut off. dd takes nothing of what follows.
        source = f"{{\n{script}\n}}\n".encode(errors="surrogateescape")
        start = f'eval "$(dd bs=1 count={len(source)} 2>/dev/null)"'
        asked = self.cluster.asked("create", POD, f"{pod} (exec)")
        socket = self._open(asked, pod, ["sh", "-c", start])
        try:
            return _talk(socket, source + stdin, timeout_s, f"{self.label}: {what}")
        except (OSError, _lost()) as error:
            raise unreachable(asked, error, self.cluster.access.host) from None
        finally:
            socket.sock.shutdown()  # close() leaves it open where the server has closed first

    def _open(self, asked: Asked, pod: str, argv: list[str]) -> Any:
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import stream

        # stream() changes the client that it is given.
        api = CoreV1Api(ApiClient(self.cluster.access.configuration))
        try:
            with unlogged():
                socket = stream(
                    api.connect_get_namespaced_pod_exec,
                    pod,
                    self.cluster.namespace,
                    container=self.target.container,
                    command=argv,
                    stdin=True,
                    stdout=True,
                    stderr=True,
                    tty=False,
                    binary=True,
                    _preload_content=False,
                )
        except ApiException as error:
            raise _refused(asked, str(error.reason), self.cluster.access.host) from None
        socket.sock.settimeout(SEND_TIMEOUT_S)
        return socket


def _talk(socket: Any, stdin: bytes, timeout_s: float, what: str) -> Completed:
    """Send the input, take the output until the command has ended."""
    for start in range(0, len(stdin), PIECE_BYTES):
        socket.write_channel(STDIN, stdin[start : start + PIECE_BYTES])
    output, errors, begun, pings = [], [], time.monotonic(), 0
    while socket.is_open():
        spent_s = time.monotonic() - begun
        if spent_s > timeout_s:
            raise no_answer(what, "it", timeout_s)
        if spent_s > (pings + 1) * PING_S:
            pings += 1
            socket.sock.ping()
        socket.update(timeout=POLL_S)
        output.append(socket.read_channel(STDOUT))
        errors.append(socket.read_channel(STDERR))
    output.append(socket.read_channel(STDOUT))
    errors.append(socket.read_channel(STDERR))
    code = _exit_code(socket.read_channel(ERROR), what)
    return Completed(code, b"".join(output), b"".join(errors).decode(errors="replace"))


def _exit_code(status: bytes, what: str) -> int:
    """The exit code in the Status with which an `exec` ends. Raises BackendError without one."""
    try:
        told: Mapping[str, Any] = json.loads(status or b"{}")
    except ValueError:
        told = {}
    if told.get("status") == "Success":
        return 0
    causes = (told.get("details") or {}).get("causes") or ()
    codes = [cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"]
    if codes and str(codes[0]).isdecimal():
        return int(codes[0])
    if not told:
        raise NoAnswer(f"{what}: the connection was lost before its end; look what it has done")
    raise NotThere(f"{what}: {told.get('message')}")  # the container has ended


def _refused(asked: Asked, reason: str, host: str) -> BackendError:
    """The error for a connection that was not made, from the client's words."""
    match = HANDSHAKE.search(reason)
    if match is None:
        return unreachable(asked, reason, host)
    try:
        body = ast.literal_eval(match[2] or "b''")
    except (ValueError, SyntaxError):
        body = b""
    error = refusal(asked, Answer.of(int(match[1]), body))
    if match[1] == "403":
        return NoPod(str(error))
    # A container that has just ended is answered with 400 or 500.
    return NotThere(str(error)) if match[1] in ("400", "404", "500") else error


def _lost() -> type[Exception]:
    from websocket import WebSocketException

    found: type[Exception] = WebSocketException
    return found
