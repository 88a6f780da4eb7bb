"""Bytes held now by line, and all lines as they were when their sum was largest."""

from __future__ import annotations

from collections.abc import Mapping


class Ledger:
    """Args:
    start: what is held all the time, by line of Memory.
    """

    def __init__(self, start: Mapping[str, int]) -> None:
        self.now = dict(start)
        self.total = sum(start.values())
        self.moment = "forward"
        self._largest: dict[str, tuple[int, dict[str, int]]] = {}
        self._note()

    def hold(self, **lines: int) -> None:
        """Add bytes, all at the same time."""
        for line, size in lines.items():
            self.now[line] = self.now.get(line, 0) + size
            self.total += size
        self._note()

    def drop(self, **lines: int) -> None:
        """Take bytes away."""
        for line, size in lines.items():
            self.now[line] = self.now.get(line, 0) - size
            self.total -= size

    def pass_by(self, **lines: int) -> None:
        """Hold bytes, and drop them again."""
        self.hold(**lines)
        self.drop(**lines)

    def unit(self) -> None:
        """The next unit begins."""

    def enter(self, moment: str) -> None:
        """The next moment begins: forward, backward or optimizer."""
        self.moment = moment
        self._note()

    @property
    def moments(self) -> dict[str, int]:
        """Bytes at the peak of each moment."""
        return {moment: total for moment, (total, _) in self._largest.items()}

    @property
    def peak(self) -> tuple[str, dict[str, int]]:
        """The moment of the largest sum, and its lines."""
        moment = max(self._largest, key=lambda each: self._largest[each][0])
        return moment, self._largest[moment][1]

    def _note(self) -> None:
        if self.total > self._largest.get(self.moment, (-1, {}))[0]:
            self._largest[self.moment] = self.total, dict(self.now)
