"""The other ranks, as the making and the finding of a checkpoint see them.

They have a process group of their own: a thread that writes beside the training must share none
with it (on one group their messages cross, and gloo aborts the process), and others may wait for a
write longer than for a step.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from trainer import limits
from trainer.limits import Limit, set_timeout

T = TypeVar("T")
NAMES_SHOWN = 8


class NoAnswer(RuntimeError):
    """Another rank has ended, or has not answered in time; nothing can be agreed on any more."""


@dataclass(frozen=True)
class Member:
    """A rank and the host that it runs on."""

    rank: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Peers:
    """All ranks, over gloo. Every rank must make it at the same point, and early.

    limit: how long what is exchanged may take on each rank; the others wait for it a minute longer,
    in which the watchdog says who is late. Not for two threads at the same time.

    Attributes:
        limit: the one that holds now.
        waiting: whether an exchange is going on.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.size = dist.get_world_size()
        self.me = Member(dist.get_rank(), socket.gethostname())
        wait = timedelta(seconds=limit.seconds + limits.MARGIN_S)
        self.group = dist.new_group(backend="gloo", timeout=wait)
        self.waiting = False

    @property
    def timeout_s(self) -> float:
        """Seconds that what is exchanged may take on each rank."""
        return self.limit.seconds

    def allow(self, limit: Limit) -> None:
        """What all ranks are at from now on has this limit; no exchange may be going on."""
        if limit != self.limit:
            self.limit = limit
            set_timeout(self.group, limit.seconds + limits.MARGIN_S)

    def patience_s(self, wanted_s: float) -> float:
        """How long a rank may look for something: the others wait for it in the next exchange."""
        return min(wanted_s, self.timeout_s / 2)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self.me.rank == 0

    def exchange(self, item: T, what: str) -> list[T]:
        """The items of all ranks in their order, on every rank.

        what: what the ranks are at, for the message of NoAnswer.
        """
        items: list[T] = [item] * self.size
        with self._waiting_for(what):
            dist.all_gather_object(items, item, group=self.group)
        return items

    def gather(self, item: object, what: str) -> list[Any] | None:
        """The items of all ranks in their order, on rank 0; None on the others."""
        items: list[Any] | None = [None] * self.size if self.first else None
        with self._waiting_for(what):
            dist.gather_object(item, items, group=self.group)
        return items

    @contextlib.contextmanager
    def _waiting_for(self, what: str) -> Iterator[None]:
        self.waiting = True
        try:
            yield
        except RuntimeError as error:
            raise self._no_answer(what, error) from error
        finally:
            self.waiting = False

    def _no_answer(self, what: str, error: Exception) -> NoAnswer:
        return NoAnswer(
            f"{what}: {self.me} got no answer from the other ranks: one of them has ended, or took"
            f" longer than {self.limit.key} ({self.timeout_s:g} s; raise it if it is only slow)"
            f" ({error})"
        )


def some(names: Iterable[str]) -> str:
    """The first of these names, each once, and how many there are besides."""
    known = list(dict.fromkeys(names))
    rest = len(known) - NAMES_SHOWN
    return ", ".join(known[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
