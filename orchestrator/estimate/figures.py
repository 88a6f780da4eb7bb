"""What the planner answers with. Bytes are of one rank, the one that has most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.estimate.setting import Setting


@dataclass(frozen=True)
class Memory:
    """Bytes on the device at the peak of a step.

    Args:
        buckets: DDP's copies of gradients, or FSDP's buffers of a reduction.
        unsharded: parameters, and gradients, that FSDP holds whole for a while.
        working: what an operation needs beside its results (logits' gradient, a recomputed block).
        overhead: context of the device and what the allocator cannot use.
        host: on the CPU, under offloading; not part of the total.
        at: the moment of the peak: forward, backward or optimizer.
    """

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    buckets: int = 0
    unsharded: int = 0
    activations: int = 0
    logits: int = 0
    working: int = 0
    overhead: int = 0
    host: int = 0
    at: str = "backward"
    # Bytes held at each of the three moments, without the overhead.
    moments: Mapping[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> dict[str, int]:
        """What the total adds up from, by name, in the order of the fields."""
        names = [one.name for one in fields(self) if one.name not in ("host", "at", "moments")]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        return sum(self.lines.values())


@dataclass(frozen=True)
class Transfer:
    """Collectives of one kind in one step.

    Args:
        kind: all_reduce, all_gather, reduce_scatter or broadcast.
        what: whose data it is, in words.
        payload_bytes: of all `count` calls together: of the whole tensor that is summed, gathered
            or scattered (not of one rank's part).
        span: inside (a node) or between (nodes).
        ranks_per_node: of the group.
    """

    kind: str
    what: str
    payload_bytes: int
    count: int
    group_size: int
    span: str
    ranks_per_node: int = 1

    @property
    def sent_bytes(self) -> float:
        """What one rank sends by a ring: 2(N-1)/N of an all-reduce's payload, else (N-1)/N."""
        share = (self.group_size - 1) / self.group_size
        return self.payload_bytes * share * (2 if self.kind == "all_reduce" else 1)


@dataclass(frozen=True)
class Traffic:
    """All collectives of one step."""

    transfers: tuple[Transfer, ...]

    def sent_bytes(self, span: str) -> float:
        return sum(one.sent_bytes for one in self.transfers if one.span == span)


@dataclass(frozen=True)
class Pace:
    """How long one step takes.

    Args:
        inside_s, between_s: of communication by span, overlapped or not.
        exposed_s: what of both no computation hides.
        bound: where the limit is: compute, inside or between.
    """

    compute_s: float
    inside_s: float
    between_s: float
    exposed_s: float
    step_s: float
    tokens_per_s: float
    bound: str
    total_s: float
    cost: float | None = None


@dataclass(frozen=True)
class Estimate:
    """The plan of one setting.

    Args:
        fits: None where the card's memory is not known.
        pace: None where the card's speed is not known.
        left_out: what the figures do not hold, in words.
    """

    setting: Setting
    memory: Memory
    traffic: Traffic
    pace: Pace | None
    fits: bool | None
    left_out: tuple[str, ...] = ()
