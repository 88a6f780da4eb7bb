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
        buckets: DDP's, where gradients don't live in them, and what its hooks make beside them.
        unsharded: parameters, and gradients, that FSDP holds whole for a while, and the buffers in
            which it gathers and sums them.
        working: what an operation needs beside its results (a block that is computed again,
            gradients in flight, autocast's narrow copies of weights).
        logits: and what the loss makes of them: at most three such tensors at a time.
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
        groups_per_node: groups that do the same at the same time and share the node's network.
        phase: the pass whose computation can hide it: forward, backward, or none.
        passes: of the micro-batches of a step, those in which it happens.
        edge_bytes: of the payload, what no computation hides: the first gather, the last sum.
    """

    kind: str
    what: str
    payload_bytes: int
    count: int
    group_size: int
    span: str
    ranks_per_node: int = 1
    groups_per_node: int = 1
    phase: str = "none"
    passes: int = 1
    edge_bytes: int = 0

    @property
    def num_nodes(self) -> int:
        """Nodes over which the group is spread."""
        return 1 if self.span == "inside" else -(-self.group_size // self.ranks_per_node)

    @property
    def rounds(self) -> int:
        """How often a ring goes round: an all-reduce is a reduce-scatter and an all-gather."""
        return 2 if self.kind == "all_reduce" else 1

    @property
    def sent_bytes(self) -> float:
        """What one rank sends by a ring: 2(N-1)/N of an all-reduce's payload, else (N-1)/N."""
        return self.payload_bytes * self.rounds * (self.group_size - 1) / self.group_size

    @property
    def node_bytes(self) -> float:
        """What leaves a node: of each ring that crosses it, what one rank sends, however many
        ranks of it the node has."""
        return self.sent_bytes * self.groups_per_node if self.span == "between" else 0.0


@dataclass(frozen=True)
class Traffic:
    """All collectives of one step."""

    transfers: tuple[Transfer, ...]

    def sent_bytes(self, span: str) -> float:
        return sum(one.sent_bytes for one in self.transfers if one.span == span)

    @property
    def node_bytes(self) -> float:
        """What leaves each node."""
        return sum(one.node_bytes for one in self.transfers)


@dataclass(frozen=True)
class Pace:
    """How long one step takes.

    Args:
        compute_s: of forward and backward passes, with what is computed again.
        optimizer_s: of the update, by what it reads and writes.
        host_s: what the host needs beside the device for each unit.
        copies_s: under offloading, of copies between the CPU's memory and the device's, overlapped
            or not.
        inside_s, between_s: of communication by span, overlapped or not.
        exposed_s: what of both no computation hides.
        bound: where the limit is: compute, host, copies, inside or between.
    """

    compute_s: float
    inside_s: float
    between_s: float
    exposed_s: float
    step_s: float
    tokens_per_s: float
    bound: str
    total_s: float
    optimizer_s: float = 0.0
    host_s: float = 0.0
    copies_s: float = 0.0
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
