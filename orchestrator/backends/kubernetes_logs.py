"""What all pods of a run print, merged, and followed over restarts of pods and lost connections."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from orchestrator.backends.kubernetes_client import Cluster
from orchestrator.backends.kubernetes_errors import NotThere
from orchestrator.backends.kubernetes_kept import RANK
from orchestrator.backends.kubernetes_kinds import POD, RUN_LABEL, Object, Target
from orchestrator.backends.kubernetes_said import BEGUN
from orchestrator.backends.runstore import LogLine
from orchestrator.backends.site import NoAnswer
from orchestrator.errors import BackendError

STREAMS_LIMIT = 256
TOO_MANY = b"[orchestrate] not followed: more logs are followed at once than is good"
LINES_LIMIT = 10_000  # that wait to be shown; then the streams wait
SILENCE_S = 60.0  # after so long a silence the connection is made anew
TRIES = 5  # that fail at once, one after the other
PAUSE_S = 1.0
REST_TIMEOUT_S = 60.0  # for streams whose containers have ended to end too
# How far back a new connection begins: the two streams of a container may be out of order a little.
OVERLAP_S = 2
SECONDS_KEPT = 64
TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True)
class Source:
    """The log of one run of a container.

    Args:
        pod, uid, container: whose.
        restarts: how often the container had been started again.
        is_previous: whether it is of the run before this one.
        node: of the run; None if the pod does not say.
        created: when the pod was made.
        is_launcher: whether the launcher and its ranks print there.
    """

    pod: str
    uid: str
    container: str
    restarts: int
    is_previous: bool
    node: int | None
    created: str
    is_launcher: bool


def sources_of(target: Target, pod: Object) -> list[Source]:
    """The logs that a pod has by now, init containers first."""
    metadata, status = pod["metadata"], pod.get("status", {})
    found = []
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            state, count = container.get("state") or {}, int(container.get("restartCount") or 0)
            has_begun = "running" in state or "terminated" in state
            rows = [(count - 1, True)] * (count > 0) + [(count, False)] * has_begun
            for restarts, is_previous in rows:
                name = str(container["name"])
                found.append(
                    Source(
                        str(metadata["name"]),
                        str(metadata.get("uid", "")),
                        name,
                        restarts,
                        is_previous,
                        target.node_rank(pod),
                        str(metadata.get("creationTimestamp", "")),
                        name == target.container,
                    )
                )
    return found


@dataclass
class Memory:
    """Which lines of a log were seen, so that a new connection neither loses nor doubles any.

    An API server takes the time from which it begins in whole seconds, and a log only grows: so it
    is enough to know how many lines of each second there were.
    """

    counts: dict[bytes, int] = field(default_factory=dict)
    skip: dict[bytes, int] = field(default_factory=dict)
    newest: bytes = b""

    def take(self, raw: bytes) -> bytes | None:
        """The text of a line that begins with its time; None for one that was seen before."""
        match = TIME.match(raw)
        if match is None:
            return raw
        second, text = match[1], raw[match.end() + 1 :]
        if self.skip.get(second, 0) > 0:
            self.skip[second] -= 1
            return None
        self.counts[second] = self.counts.get(second, 0) + 1
        if second >= self.newest[:19]:
            self.newest = match[1] + match[2]
        if len(self.counts) > SECONDS_KEPT:
            for old in sorted(self.counts)[: SECONDS_KEPT // 2]:
                del self.counts[old]
        return text

    def again(self) -> str:
        """From which time a new connection is to begin; "" for the start of the log."""
        self.skip = dict(self.counts)
        if not self.newest:
            return ""
        text = self.newest.decode().replace("Z", "+00:00")  # Python 3.10 does not know Z
        return (datetime.fromisoformat(text) - timedelta(seconds=OVERLAP_S)).isoformat()


def read_source(
    cluster: Cluster, source: Source, *, follow: bool, stop: threading.Event, pause_s: float
) -> Iterator[bytes]:
    """The lines of a log, to the end of the container where it is followed.

    Raises BackendError where it cannot be read, after some tries.
    """
    memory, tries = Memory(), TRIES
    path = f"{POD.path(cluster.namespace, source.pod)}/log"
    asked = cluster.asked("get", POD, f"{source.pod} (log)")
    query = [("container", source.container), ("timestamps", "true")]
    query += [("previous", "true")] if source.is_previous else []
    query += [("follow", "true")] if follow and not source.is_previous else []
    while not stop.is_set():
        since, begun = memory.again(), time.monotonic()
        more = [("sinceTime", since)] if since else []
        try:
            for raw in cluster.lines(asked, path, [*query, *more], SILENCE_S):
                text = memory.take(raw)
                if text is not None:
                    tries = TRIES
                    yield text
            return
        except NotThere:
            return
        except NoAnswer:
            tries = TRIES if time.monotonic() - begun > SILENCE_S / 2 else tries - 1
            if tries == 0:
                raise
        stop.wait(pause_s)


@dataclass
class RunLogs:
    """The logs of a run.

    Args:
        cluster: where the run is.
        target: what it is.
        run: its name.
        pause_s: before a connection that was lost is made anew.
    """

    cluster: Cluster
    target: Target
    run: str
    pause_s: float = PAUSE_S
    _known: set[tuple[str, str, int]] = field(default_factory=set, repr=False)
    _lines: queue.Queue[tuple[Source, bytes]] = field(
        default_factory=lambda: queue.Queue(LINES_LIMIT), repr=False
    )
    _left_out: list[Source] = field(default_factory=list, repr=False)
    _threads: list[threading.Thread] = field(default_factory=list, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _heads: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)

    def all(self) -> Iterator[LogLine]:
        """What the newest pods have printed until now, one container after the other."""
        for source in self._newest():
            yield from self._told(source, self._texts(source, follow=False))

    def new(self) -> Iterator[LogLine]:
        """What was printed since the last call, as it came; the pods that are new are followed."""
        self._start_streams()
        yield from self._drained()

    def rest(self) -> Iterator[LogLine]:
        """What is left once the run has ended."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        self._start_streams()
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:
            yield from self._drained(wait_s=0.05)
        self._stop.set()
        yield from self._drained()

    def _pods(self) -> list[Object]:
        pods: Sequence[Object] = self.cluster.objects(POD, f"{RUN_LABEL}={self.run}")
        return sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp", "")),
                                             self.target.node_rank(pod) or 0))  # fmt: skip

    def _newest(self) -> list[Source]:
        """The logs of the newest pod of each node, in the order of the nodes."""
        pods = {self.target.node_rank(pod): pod for pod in self._pods()}
        ordered = sorted(pods.items(), key=lambda row: -1 if row[0] is None else row[0])
        return [source for _, pod in ordered for source in sources_of(self.target, pod)]

    def _start_streams(self) -> None:
        """Follow each log that is not yet followed, up to a limit."""
        try:
            pods = self._pods()
        except NoAnswer:  # the next call asks again; whoever follows sees the state UNKNOWN
            return
        for source in (s for pod in pods for s in sources_of(self.target, pod)):
            key = (source.uid or source.pod, source.container, source.restarts)
            if key in self._known:
                continue
            self._known.add(key)
            if sum(thread.is_alive() for thread in self._threads) >= STREAMS_LIMIT:
                self._left_out.append(source)
                continue
            # A daemon: nobody waits for one that listens to a silent container.
            thread = threading.Thread(target=self._pump, args=(source,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, source: Source) -> None:
        for text in self._texts(source, follow=True):
            while not self._stop.is_set():
                try:
                    self._lines.put((source, text), timeout=self.pause_s)
                    break
                except queue.Full:
                    continue
            else:
                return

    def _texts(self, source: Source, *, follow: bool) -> Iterator[bytes]:
        """The lines of a log; one that cannot be read is a line that says why."""
        try:
            yield from read_source(
                self.cluster, source, follow=follow, stop=self._stop, pause_s=self.pause_s
            )
        except BackendError as error:
            yield f"[orchestrate] {error}".encode()

    def _drained(self, wait_s: float = 0.0) -> Iterator[LogLine]:
        while self._left_out:
            yield from self._told(self._left_out.pop(0), iter([TOO_MANY]))
        try:
            while True:
                source, text = self._lines.get(timeout=wait_s) if wait_s else self._lines.get(False)
                yield from self._told(source, iter([text]))
        except queue.Empty:
            return

    def _told(self, source: Source, texts: Iterator[bytes]) -> Iterator[LogLine]:
        """Lines with who printed them."""
        for text in texts:
            if source.node == 0 and source.is_launcher and (begun := BEGUN.match(text)):
                self._heads[source.uid] = (source.created, int(begun[1]))
            match = RANK.match(text) if source.is_launcher else None
            rank = int(match[1]) if match else None
            shown = text[match.end() :] if match else text
            who = "" if source.is_launcher else source.container
            yield LogLine(self._attempt(source), source.node, rank, who, source.pod, shown)

    def _attempt(self, source: Source) -> int | None:
        """The attempt of a pod: its own if it is node 0's, else that of the newest of those."""
        if source.uid in self._heads:
            return self._heads[source.uid][1]
        if source.node == 0 or not self._heads:
            return None
        return max(self._heads.values())[1]
