"""Reading a run folder for a page: what cannot be read is left out, and noted with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.backends.runstore import FILE, FOLDER, MISSING
from orchestrator.cli.common import os_error_words
from orchestrator.cli.follow import Lines
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.runstore import RunStore

SMALL_BYTES = 256 * 1024  # of a file that is read for a page as a whole


@dataclass
class Reading:
    """A run folder without what leads out of it.

    left_out: what could not be read, each with the reason; filled as it is read.
    """

    store: RunStore
    left_out: dict[str, str] = field(default_factory=dict)

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none if it is not there."""
        return self.store.list(folder) if self._are([folder], FOLDER) == [True] else []

    def ends(self, paths: Sequence[str], limit_bytes: int = SMALL_BYTES) -> list[bytes]:
        """The last bytes of each file; b"" for one that is not there or cannot be read."""
        known = self._are(paths, FILE)
        wanted = [path for path, is_file in zip(paths, known, strict=True) if is_file]
        found = iter(self.store.ends(wanted, limit_bytes) if wanted else [])
        return [next(found) if is_file else b"" for is_file in known]

    def end(self, path: str) -> bytes:
        return self.ends([path])[0]

    def lines(self, path: str) -> Readable:
        """The lines of a file of any length; none if it is not there."""
        return Readable(self, path)

    def is_file(self, path: str) -> bool:
        return self._are([path], FILE) == [True]

    def _are(self, paths: Sequence[str], wanted: str) -> list[bool]:
        """Which of them are what is wanted; one that is something else is noted."""
        kinds = self.store.kinds(paths) if paths else []
        for path, kind in zip(paths, kinds, strict=True):
            if kind not in (wanted, MISSING):
                self.left_out[path] = f"a {kind}" if kind in (FILE, FOLDER) else kind
        return [kind == wanted for kind in kinds]


@dataclass(frozen=True)
class Readable:
    """The lines of a file as far as they can be read, read anew each time."""

    reading: Reading
    path: str

    def __iter__(self) -> Iterator[bytes]:
        if not self.reading.is_file(self.path):
            return
        try:
            yield from Lines(self.reading.store, self.path)
        except (OSError, BackendError) as error:  # the rest of the folder is shown all the same
            words = os_error_words(error) if isinstance(error, OSError) else str(error)
            self.reading.left_out[self.path] = words
