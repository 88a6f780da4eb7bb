"""How requests reach an API server: by the official client, with a time limit each, repeated where
that helps, and with every refusal in words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from orchestrator.backends import kubernetes_errors as errors
from orchestrator.backends.kubernetes_config import Access, access_of, unlogged
from orchestrator.backends.kubernetes_errors import Answer, Asked
from orchestrator.errors import BackendError

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
# Before each repetition; after the last one it is over.
PAUSES_S = (0.3, 1.0, 3.0)
# A server that asks for more by Retry-After is not waited for.
RETRY_AFTER_LIMIT_S = 30.0
REPEATED = (429, 500, 502, 503, 504)

Query = Sequence[tuple[str, str]]


class Request(NamedTuple):
    """What is sent.

    Args:
        timeout_s: longest silence of the server, if it is another than usual.
        is_stream: whether the answer is read as it comes.
        is_once: whether it is not worth a repetition.
    """

    method: str
    path: str
    query: Query = ()
    body: Any = None
    content_type: str | None = None
    timeout_s: float | None = None
    is_stream: bool = False
    is_once: bool = False


@dataclass(kw_only=True)
class Transport:
    """The way to the API server of a context. Nothing is read or sent before the first request.

    Args:
        context: of the kubeconfig; its current one, or the pod's own account, without.
        pauses_s: before each repetition of a request.
        read_timeout_s: longest silence of the server.
    """

    context: str | None = None
    pauses_s: Sequence[float] = PAUSES_S
    read_timeout_s: float = READ_TIMEOUT_S
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @cached_property
    def access(self) -> Access:
        """Where the server is, and who asks. Raises BackendError without a usable kubeconfig."""
        return access_of(self.context)

    def send(self, asked: Asked, request: Request) -> Any:
        """Send a request, again where that may help; the JSON of its answer, or the response."""
        for pause_s in (*(() if request.is_once else self.pauses_s), None):
            try:
                return self._sent(request)
            except UnicodeDecodeError:  # of the answer, which is then no object
                return None
            except (ValueError, ImportError) as error:  # its words may have the token in them
                raise errors.unsendable(asked, error) from None
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

    def lines(
        self,
        asked: Asked,
        path: str,
        query: Query,
        timeout_s: float | None = None,
        *,
        is_once: bool = False,
    ) -> Iterator[bytes]:
        """The lines of an answer as they come, without line ends.

        Raises NoAnswer where the connection breaks: the lines so far are good.

        Args:
            timeout_s: longest silence.
            is_once: whether a refusal is not worth a repetition.
        """
        request = Request("GET", path, query, None, None, timeout_s, True, is_once)
        response = self.send(asked, request)
        try:
            yield from _lines(response)
        except _broken() as error:
            raise errors.unreachable(asked, error, self.access.host) from None
        finally:
            response.close()


def _sent(client: Any, request: Request, read_timeout_s: float) -> Any:
    with unlogged():  # a plug-in may be run again; what it lacks is told after the refusal
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
