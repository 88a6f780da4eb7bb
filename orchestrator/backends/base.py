"""What every backend offers, and the words in which it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from orchestrator.backends.runstore import RunStore


class State(Enum):
    """Where a run is. The values are the words of `--json`."""

    QUEUED = "QUEUED"  # held back before the scheduler looks at it
    PENDING = "PENDING"  # accepted, no attempt has started
    SUSPENDED = "SUSPENDED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"  # between two attempts
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"  # whoever looked after it is gone without a last word
    UNKNOWN = "UNKNOWN"

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen any more unless the run is submitted again."""
        return self in (State.DONE, State.FAILED, State.CANCELLED, State.LOST)


@dataclass(frozen=True)
class After:
    """A run that waits for another one.

    Args:
        kind: `afterok`, `afterany`, `afternotok` or `after`, as sbatch has them.
        target: name of a run under the same runs root, or a job's id.
    """

    kind: str
    target: str


class RenderedFiles(Protocol):
    """The files of one run, by name, as `orchestrator.render` makes them."""

    @property
    def name(self) -> str: ...

    @property
    def files(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Handle:
    """A run that was submitted.

    Args:
        backend: name of the backend.
        run: name of the run.
        run_dir: the run folder, absolute.
        ids: what the scheduler knows it by.
        num_elements: how many runs it is made of, if it is a sweep; 0 for a single run.
    """

    backend: str
    run: str
    run_dir: Path
    ids: Mapping[str, str] = field(default_factory=dict)
    num_elements: int = 0


@dataclass(frozen=True)
class Submission:
    """What became of a submit: `started` is False where there was nothing to start."""

    handle: Handle
    started: bool
    message: str


@dataclass(frozen=True)
class Status:
    """A run at one moment; None or "" where it is not known.

    Args:
        attempt: number of the newest attempt, from 1.
        reason: why it is in this state, in words.
        step: optimizer steps done.
        steps: optimizer steps in all.
    """

    run: str
    state: State
    attempt: int | None = None
    reason: str = ""
    step: int | None = None
    steps: int | None = None


# Whose state a sweep has: the first of these that one of its elements has.
PRECEDENCE = (State.RUNNING, State.RESTARTING, State.PENDING, State.QUEUED, State.SUSPENDED,
              State.UNKNOWN, State.FAILED, State.LOST, State.CANCELLED, State.DONE)  # fmt: skip


def folded(run: str, elements: Sequence[Status]) -> Status:
    """The status of a sweep from those of its elements, of which there is at least one: what still
    goes on comes first."""
    counts = Counter(status.state for status in elements)
    words = ", ".join(f"{counts[state]} {state.value}" for state in PRECEDENCE if counts[state])
    state = next(state for state in PRECEDENCE if counts[state])
    return Status(run, state, reason=f"of {len(elements)} elements: {words}")


@dataclass(frozen=True)
class Element:
    """One run of a sweep at one moment; None where it is not known.

    Args:
        number: from 0.
        handle: of the run, whose name is `SWEEP/NUMBER`.
        values: what it has of its own, by key with dots.
        loss: the newest training loss.
        best_validation_loss: the lowest so far.
    """

    number: int
    handle: Handle
    status: Status
    values: Mapping[str, Any]
    loss: float | None = None
    best_validation_loss: float | None = None


class Backend(Protocol):
    """A place where runs are started. Every method may raise BackendError."""

    @property
    def name(self) -> str: ...

    @property
    def poll_s(self) -> float:
        """Seconds between two questions for a state that it bears from whoever follows a run."""
        ...

    def at(self, ssh: str) -> Backend:
        """The same backend on another machine, by ssh. Raises UserError if there is no such."""
        ...

    def submit(
        self,
        rendered: RenderedFiles,
        *,
        runs_root: Path,
        workdir: Path,
        job_text: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        """Start the run, or continue it: its name is the run.

        Args:
            runs_root: folder of all runs; made if it is not there.
            workdir: folder that relative paths of the job file are relative to.
            job_text: the job file as it was given.
            fresh: rename the old run folder and start anew.
            after: what it waits for; a backend without a queue raises UserError.
        """
        ...

    def online_check(self, rendered: RenderedFiles) -> str:
        """Ask the scheduler whether it would take the run, without sending it; its answer.

        Raises BackendError if it would not.
        """
        ...

    def handle(self, run_dir: Path) -> Handle:
        """The handle of a run folder that was made by an earlier submit."""
        ...

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle, in the same order; for a sweep that of all its elements."""
        ...

    def elements(self, handle: Handle) -> list[Element]:
        """The elements of a sweep, in their order; none for a single run."""
        ...

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        """Stop a run after a checkpoint, or at once; what happened, in words."""
        ...

    def list(self, runs_root: Path) -> list[Handle]:
        """All runs under a folder, by name."""
        ...

    def run_store(self, handle: Handle) -> RunStore:
        """Access to the run folder."""
        ...


@runtime_checkable
class SiteBackend(Protocol):
    """A backend that a profile tells more than where to work."""

    def for_site(self, facts: Mapping[str, Any]) -> Backend:
        """The same backend for what a profile's part of the target's name says."""
        ...
