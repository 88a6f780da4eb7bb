"""What a run measured, out of its metrics, and the same figures as they were planned."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.bench.cells import WARM_UP_STEPS
from orchestrator.estimate.figures import Transfer

if TYPE_CHECKING:
    from orchestrator.estimate.figures import Estimate


@dataclass(frozen=True)
class Figures:
    """Of one cell; None where it is not known.

    Args:
        peak_bytes: of the rank that holds most.
        step_s: the median of the steps after the warm-up.
        low_s, high_s: their quartiles; None for what was planned.
        cpu_s: seconds of CPU of a step, of the rank that took most: other programs on the machine
            hardly change it. None for what was planned.
        inside_bytes, between_bytes: that a rank sends in a step.
        fits: as planned.
    """

    peak_bytes: int | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    inside_bytes: float | None = None
    between_bytes: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    fits: bool | None = None
    cpu_s: float | None = None


# What is compared, and its name in tables.
COMPARED = {
    "peak_bytes": "peak memory",
    "step_s": "step time",
    "tokens_per_s": "tokens/s",
    "inside_bytes": "sent inside",
    "between_bytes": "sent between",
}


def measured(metrics: bytes, tokens_per_step: int) -> Figures:
    """Return what the lines of metrics.jsonl say of the newest attempt.

    Args:
        tokens_per_step: of all ranks together.
    """
    lines = list(_lines(metrics))
    newest = max((one.get("attempt", 0) for one in lines), default=0)
    lines = [one for one in lines if one.get("attempt", 0) == newest]
    steps = [float(one["step_s"]) for one in lines if "step_s" in one][WARM_UP_STEPS:]
    low_s, step_s, high_s = _quartiles(steps) if len(steps) > 1 else (None, None, None)
    events = {one["event"]: one for one in lines if "event" in one}
    sent = _sent(events["traffic"]["collectives"]) if "traffic" in events else {}
    return Figures(
        peak_bytes=_peak(lines, events),
        step_s=step_s,
        tokens_per_s=tokens_per_step / step_s if step_s else None,
        inside_bytes=sent.get("inside"),
        between_bytes=sent.get("between"),
        low_s=low_s,
        high_s=high_s,
        cpu_s=events.get("use", {}).get("cpu_s"),
    )


def _lines(metrics: bytes) -> Iterator[Mapping[str, Any]]:
    """The whole lines; the last one of a run that was killed may be none."""
    for text in metrics.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line


def _quartiles(steps: list[float]) -> tuple[float, float, float]:
    low_s, step_s, high_s = statistics.quantiles(steps, n=4, method="inclusive")
    return low_s, step_s, high_s


def _peak(lines: list[Mapping[str, Any]], events: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Of all ranks, which is told at the end; of rank 0 in a run that did not come so far."""
    if "use" in events:
        return int(events["use"]["peak_bytes"])
    known = [int(one["peak_memory_bytes"]) for one in lines if one.get("peak_memory_bytes")]
    return max(known, default=None)


def _sent(collectives: list[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes that a rank sends in a step, by span, with the planner's own formula."""
    found = {"inside": 0.0, "between": 0.0}
    for one in collectives:
        span = "inside" if one["group_size"] == one["ranks_per_node"] else "between"
        payload_bytes, size = one["payload_bytes"], one["group_size"]
        found[span] += Transfer(one["kind"], "", payload_bytes, 1, size, span).sent_bytes
    return found


def planned(one: Estimate) -> Figures:
    """Return the same figures of a plan."""
    return Figures(
        peak_bytes=one.memory.total,
        step_s=one.pace.step_s if one.pace else None,
        tokens_per_s=one.pace.tokens_per_s if one.pace else None,
        inside_bytes=one.traffic.sent_bytes("inside"),
        between_bytes=one.traffic.sent_bytes("between"),
        fits=one.fits,
    )


def error_percent(planned: Figures, measured: Figures, name: str) -> float | None:
    """Return by how much a planned figure is above (or below) the measured one, in percent; None
    where one of them is not known."""
    plan, seen = getattr(planned, name), getattr(measured, name)
    if plan is None or seen is None:
        return None
    if not seen:
        return 0.0 if not plan else None
    return float(100 * (plan - seen) / seen)
