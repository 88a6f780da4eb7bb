"""Reading files that grow: whole lines, from a place that is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.backends.runstore import RunStore


@dataclass
class Follower:
    """Hands out the lines that were added to one file of a run folder since the last call."""

    store: RunStore
    path: str
    offset: int = 0
    rest: bytes = field(default=b"", repr=False)

    def lines(self) -> list[bytes]:
        """Complete new lines, without their line ends. A line that is still being written waits."""
        chunk = self.store.tail(self.path, self.offset)
        self.offset += len(chunk)
        *whole, self.rest = (self.rest + chunk).split(b"\n")
        return whole

    def last(self) -> list[bytes]:
        """What is left when nobody writes any more."""
        whole = self.lines()
        return [*whole, self.rest] if self.rest else whole
