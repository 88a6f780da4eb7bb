"""How long a run waits for its start, against timeouts.queue.

Slurm's --deadline is not for this: it counts the time limit in, holds for requeues too, and a user
cannot take it back (docs/timeouts.md). So whoever follows the run ends it.
"""

from __future__ import annotations

import calendar
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.contract import RENDERED_DIR
from orchestrator.errors import BackendError
from orchestrator.units import format_duration

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle, Status
    from orchestrator.backends.runstore import RunStore

RECEIPT_TIME = "%Y-%m-%dT%H:%M:%SZ"  # of submitted_at


@dataclass(frozen=True)
class Queueing:
    """The wait of a run for its start.

    Args:
        limit_s: timeouts.queue.
        since_s: when it was submitted, in seconds since 1970.
    """

    limit_s: int
    since_s: float

    def is_over(self, status: Status, now_s: float) -> bool:
        """Whether the run has waited for longer than it may."""
        return _waits(status) and now_s - self.since_s > self.limit_s

    def words(self, now_s: float) -> str:
        """How long the run has waited, and how long it may."""
        waited = format_duration(max(0, int(now_s - self.since_s)))
        return f"has waited {waited} of timeouts.queue ({format_duration(self.limit_s)})"


def queueing_of(backend: Backend, handle: Handle) -> Queueing | None:
    """Return how long a run may wait; None if there is no limit, or nobody tells it.

    Where its receipt cannot be read, as on Kubernetes before a pod runs, the wait begins now.
    """
    store = backend.run_store(handle)
    limit_s = _read(store, f"{RENDERED_DIR}/launch.json").get("queue_timeout_s")
    if not isinstance(limit_s, int):
        return None
    return Queueing(limit_s, _submitted_s(_read(store, "receipt.json")) or time.time())


def shown(backend: Backend, handle: Handle, status: Status) -> str:
    """Return what to add to a run's reason: its wait, if it waits and that is limited."""
    queueing = queueing_of(backend, handle) if _waits(status) else None
    return queueing.words(time.time()) if queueing is not None else ""


def _waits(status: Status) -> bool:
    """Whether a run awaits its first attempt: one that was held or preempted later does not."""
    return status.state.name in ("QUEUED", "PENDING") and not status.attempt


def _read(store: RunStore, path: str) -> dict[str, Any]:
    try:
        content = json.loads(store.read(path))
    except (OSError, BackendError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _submitted_s(receipt: dict[str, Any]) -> float | None:
    try:
        return calendar.timegm(time.strptime(str(receipt.get("submitted_at")), RECEIPT_TIME))
    except ValueError:
        return None
