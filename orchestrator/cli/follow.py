"""Following a run: whole lines of files that grow, and its state until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle, Status
    from orchestrator.backends.runstore import RunStore

LINE_LIMIT_BYTES = 1024 * 1024
# Of up to 16 MiB each: 1 TiB, which ends the reading of a file that grows as fast as it is read.
CHUNKS_LIMIT = 65536
# One answer without a state may be the scheduler's bad moment.
UNKNOWN_LIMIT = 10


@dataclass
class Follower:
    """Hands out the lines that were added to one file of a run folder since the last call.

    No more than one chunk of the file is held at once. A line of more than 1 MiB comes in pieces.
    """

    store: RunStore
    path: str
    offset: int = 0
    rest: bytes = field(default=b"", repr=False)

    def lines(self) -> Iterator[bytes]:
        """Complete new lines, without their line ends. A line that is still being written waits."""
        for _ in range(CHUNKS_LIMIT):
            chunk = self.store.tail(self.path, self.offset)
            if not chunk:
                return
            self.offset += len(chunk)
            *whole, rest = (self.rest + chunk).split(b"\n")
            *pieces, self.rest = _pieces(rest)
            for line in whole:
                yield from _pieces(line)
            yield from pieces

    def last(self) -> Iterator[bytes]:
        """What is left when nobody writes any more."""
        yield from self.lines()
        rest, self.rest = self.rest, b""
        if rest:
            yield rest


@dataclass(frozen=True)
class Lines:
    """The lines of a file, read anew each time they are gone through, a part at once."""

    store: RunStore
    path: str

    def __iter__(self) -> Iterator[bytes]:
        return Follower(self.store, self.path).last()


def _pieces(line: bytes) -> list[bytes]:
    """The line in pieces of at most 1 MiB; one empty piece for an empty line."""
    starts = range(0, max(1, len(line)), LINE_LIMIT_BYTES)
    return [line[start : start + LINE_LIMIT_BYTES] for start in starts]


def states(backend: Backend, handle: Handle) -> Iterator[Status]:
    """The run's state at each poll, up to a final one, or until it stays unknown."""
    unknown = 0
    while True:
        status = backend.status([handle])[0]
        yield status
        unknown = unknown + 1 if status.state.name == "UNKNOWN" else 0
        if status.state.is_final or unknown == UNKNOWN_LIMIT:
            return
        time.sleep(backend.poll_s)
