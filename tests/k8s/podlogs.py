"""Logs of containers as a kubelet keeps them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone

from k8s.answers import ApiError

Line = tuple[str, bytes]  # time as RFC3339 with nanoseconds, text without its line end


@dataclass
class Log:
    """What one run of a container has printed; `ended` once it prints no more."""

    lines: list[Line] = field(default_factory=list)
    ended: bool = False


class PodLogs:
    """By namespace, pod and container: the run before this one, and this one."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.logs: dict[tuple[str, str, str], list[Log]] = {}

    def write(
        self,
        pod: str,
        text: str | bytes,
        *,
        container: str = "node",
        namespace: str = "default",
        at: str = "",
    ) -> None:
        """Add lines. `at`: their time, such as 2026-11-30T10:00:00.000000001Z; now without."""
        raw = text.encode() if isinstance(text, str) else text
        when = at or datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        with self.changed:
            runs = self.logs.setdefault((namespace, pod, container), [Log()])
            runs[-1].lines += [(when, line) for line in raw.removesuffix(b"\n").split(b"\n")]
            self.changed.notify_all()

    def end(self, pod: str, *, container: str = "node", namespace: str = "default") -> None:
        """The container has ended: whoever follows its log comes to the end."""
        with self.changed:
            self.logs.setdefault((namespace, pod, container), [Log()])[-1].ended = True
            self.changed.notify_all()

    def restart(self, pod: str, *, container: str = "node", namespace: str = "default") -> None:
        """A new run of the container begins; the last one's log is `previous` from now on."""
        with self.changed:
            runs = self.logs.setdefault((namespace, pod, container), [Log()])
            runs[-1].ended = True
            runs.append(Log())
            self.changed.notify_all()

    def remove(self, namespace: str, pod: str) -> None:
        """The pod is gone, and its logs with it."""
        with self.changed:
            for key in [key for key in self.logs if key[:2] == (namespace, pod)]:
                for log in self.logs.pop(key):
                    log.ended = True
            self.changed.notify_all()

    def find(self, namespace: str, pod: str, container: str, *, previous: bool) -> Log:
        runs = self.logs.get((namespace, pod, container), [])
        if previous and len(runs) < 2:
            text = f'previous terminated container "{container}" in pod "{pod}" not found'
            raise ApiError(400, text)
        if not runs:
            raise ApiError(
                400,
                f'container "{container}" in pod "{pod}" is waiting to start: ContainerCreating',
            )
        return runs[-2] if previous else runs[-1]


def since(lines: list[Line], when: str) -> int:
    """Where the lines of `when` and later begin; an API server cuts it to whole seconds."""
    return next((n for n, (at, _) in enumerate(lines) if at[:19] >= when[:19]), len(lines))
