"""Running cells through any backend: submit, wait, read the metrics."""

from __future__ import annotations

import contextlib
import hashlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import contract
from orchestrator.backends.base import Backend, Element, Handle, RenderedFiles, State, Status
from orchestrator.backends.waiting import wait
from orchestrator.bench.book import Row
from orchestrator.bench.cells import Cell
from orchestrator.bench.measured import Figures, measured
from orchestrator.errors import BackendError, OrchestrateError


@dataclass(frozen=True)
class Prepared:
    """A cell that may run.

    Args:
        rendered: the files of its run.
        tokens_per_step: of all ranks together.
    """

    cell: Cell
    rendered: RenderedFiles
    tokens_per_step: int
    planned: Figures

    @property
    def digest(self) -> str:
        """Of all that the run is started with."""
        return digest_of(self.rendered)

    def row(self, run: str, status: Status, figures: Figures) -> Row:
        """Return the row of a run that has ended."""
        reason = "" if status.state is State.DONE else first_line(status.reason)
        return Row(self.cell, run, self.digest, status.state.name, reason, figures, self.planned)


def digest_of(rendered: RenderedFiles) -> str:
    """Return a digest of all files of a run, with their names."""
    found = hashlib.sha256()
    for name, text in sorted(rendered.files.items()):
        found.update(f"{name}\0{len(text)}\0{text}".encode())
    return found.hexdigest()[:16]


def first_line(text: str) -> str:
    """Return the first line that says something, on one line."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """In here SIGTERM is SystemExit with the code 143, so that what runs is stopped on the way out;
    the main thread alone may ask for it."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Place:
    """Where and how long cells run.

    Args:
        timeout_s: for one submission, from the submit on.
        fresh: put aside what an earlier bench has left of a run; not every backend can.
    """

    backend: Backend
    runs_root: Path
    workdir: Path
    job_text: str
    timeout_s: float
    fresh: bool = True

    def run(self, one: Prepared) -> Row:
        """Run one cell to its end. What goes wrong is in the row; Ctrl-C and SIGTERM (see
        `ended_by_sigterm`) stop the run too."""
        try:
            handle, status = self._to_the_end(one.rendered)
        except OrchestrateError as error:
            return self._failed(one, error)
        return self._row(one, handle, status)

    def run_array(self, cells: Sequence[Prepared], rendered: RenderedFiles) -> list[Row]:
        """Run cells as the elements of one sweep, in their order; see `run`."""
        try:
            handle, _ = self._to_the_end(rendered)
            elements: Sequence[Element] = self.backend.elements(handle)
        except OrchestrateError as error:
            return [self._failed(one, error) for one in cells]
        pairs = zip(cells, elements, strict=True)
        return [self._row(one, element.handle, element.status) for one, element in pairs]

    def _to_the_end(self, rendered: RenderedFiles) -> tuple[Handle, Status]:
        """Raises BackendError: it was not taken, or did not end in time."""
        submission = self.backend.submit(
            rendered,
            runs_root=self.runs_root,
            workdir=self.workdir,
            job_text=self.job_text,
            fresh=self.fresh,
        )
        if not submission.started:
            raise BackendError(
                f"{submission.message}; --set name=NAME gives the bench another name"
            )
        handle = submission.handle
        with self._stopped(handle):
            (status,) = wait(self.backend, [handle], timeout_s=self.timeout_s)
        return handle, status

    @contextlib.contextmanager
    def _stopped(self, handle: Handle) -> Iterator[None]:
        """A run is cancelled when its end is not waited for any more."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, BackendError):
            with contextlib.suppress(BackendError):  # what interrupted it is told
                self.backend.cancel(handle, now=True)
            raise

    def _row(self, one: Prepared, handle: Handle, status: Status) -> Row:
        store = self.backend.run_store(handle)
        try:
            figures = measured(store.tail(contract.METRICS_FILE, 0), one.tokens_per_step)
        except OrchestrateError as error:
            return self._failed(one, error)
        if status.state is State.DONE:
            with contextlib.suppress(OrchestrateError, OSError):  # it only takes space
                store.remove(contract.CHECKPOINTS_DIR)
        return one.row(handle.run, status, figures)

    def _failed(self, one: Prepared, error: OrchestrateError) -> Row:
        run, reason = one.rendered.name, first_line(str(error))
        return Row(one.cell, run, one.digest, State.FAILED.name, reason, planned=one.planned)
