"""One checkpoint on its way from memory to disk, the same on every rank."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from trainer import phase
from trainer.checkpoint import Files, Manifest, error_behind
from trainer.config import TrainerConfig
from trainer.contract import Contract, Superseded
from trainer.limits import SAVE_GRACE_S
from trainer.peers import Peers, some
from trainer.pruning import prune
from trainer.staging import Staged
from trainer.writing import (
    CheckpointNotWritten,
    Draft,
    PartNotWritten,
    TookTooLong,
    free_space,
    refuse_if_superseded,
)

if TYPE_CHECKING:  # torch's part of it takes time to import
    from trainer.shards import Parts

T = TypeVar("T")
BEAT_S = 1.0  # from one sign of progress to the next while the main thread waits


@dataclass(frozen=True)
class Fault:
    """What stopped a rank. reason: who, where and why; kind: what all ranks raise for it.

    free: how much space there was, in words.
    """

    reason: str
    kind: Literal["superseded", "late", "refused"]
    free: str = ""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What one rank's part gave, or why it gave nothing."""

    value: T | None
    fault: Fault | None = None


class Flight:
    """A checkpoint on its way: run() here or start() in a thread, then wait(), on every rank.

    Attributes:
        step: optimizer steps that were done.
        draft: where it lies.
        published: on rank 0, whether it is on disk under its name.
        seconds: from `began`, of time.perf_counter(), until it was published.
        blocked_s: how long the training stood still for it.
        told: for the owner's use: whether the event has been written.
    """

    def __init__(
        self,
        manifest: Manifest,
        staged: Staged,
        config: TrainerConfig,
        contract: Contract,
        peers: Peers,
        broken: Collection[Path],
        began: float,
    ) -> None:
        self._manifest, self._staged, self._config = manifest, staged, config
        self._contract, self._peers, self._broken, self._began = contract, peers, broken, began
        self._deadline = monotonic() + peers.timeout_s
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._enter: Callable[[str, int], None] = phase.tell
        self.step = manifest.step
        self.draft = Draft.of(contract, manifest.step, self._deadline)
        self.seconds = self.blocked_s = 0.0
        self.published = self.told = False

    def start(self) -> None:
        """Write in a thread of its own. A rank that ends by an error does not wait for it."""
        name = f"checkpoint-{self.step}"
        self._thread = threading.Thread(target=self.run, args=(phase.tell,), name=name, daemon=True)
        self._thread.start()

    def run(self, enter: Callable[[str, int], None]) -> None:
        """Write and publish; what goes wrong is for wait(). enter: how phases are told."""
        self._enter = enter
        try:
            self._run()
        except Exception as error:  # raised by wait(), at a step that all ranks share
            self._error = error
        if not self.published:
            self.seconds = perf_counter() - self._began
        if self._thread is None:
            self.blocked_s = perf_counter() - self._began

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, but no longer than this, and so without the watchdog's limit."""
        until = monotonic() + timeout_s
        while self._thread is not None and self._goes_on and monotonic() < until:
            self._thread.join(min(BEAT_S, until - monotonic()))
            phase.beat()

    def wait(self) -> None:
        """Return once it is published; raise what stopped it, the same on all ranks."""
        began = perf_counter()
        # A thread that is late ends by itself, with a better message; so it gets this much more.
        self.join(self._deadline - monotonic() + SAVE_GRACE_S)
        if self._peers.waiting:
            self.join(SAVE_GRACE_S)  # the rank that it waits for has ended by then, and said why
        if self._thread is not None:
            self.blocked_s += perf_counter() - began
        if self.published and self._goes_on:
            self._wait_for_removal()
        if self._goes_on:
            what = "the other ranks do" if self._peers.waiting else "the disk does"
            raise TookTooLong(self._late(f"{self._peers.me}: {what} not answer"))
        if self._error is not None:
            raise self._error

    @property
    def _goes_on(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _wait_for_removal(self) -> None:
        """Old ones are being removed, which has as long again."""
        before = phase.current
        phase.follow("prune", self.step)
        self.join(self._peers.timeout_s)
        if self._goes_on:
            raise TookTooLong(
                f"checkpoint {self.draft.final} is whole, and old checkpoints were not removed"
                f" within timeouts.checkpoint ({self._peers.timeout_s:g} s; raise it if the disk is"
                f" only slow): {self._peers.me}: the disk does not answer"
            )
        phase.follow(*before)

    def _run(self) -> None:
        try:
            if self._staged.shards is None:
                self._together(self._write_alone)
            else:
                self._write_in_parts(self._staged.shards)
        except (CheckpointNotWritten, Superseded, TookTooLong):
            if self._peers.first:
                self.draft.discard()  # all ranks have stopped to write
            raise
        self._clear()

    def _write_alone(self) -> None:
        """Rank 0's work where it writes everything; the others have none."""
        if self._peers.first and self._begin():
            self._publish(self.draft.write(self._staged.parts))

    def _write_in_parts(self, shards: Parts) -> None:
        first = self._peers.first
        begun = self._together(lambda: first and self._begin())
        if not begun[0]:
            return
        written = self._together(lambda: self._write_own(shards))
        files = {name: facts for own in written for name, facts in (own or {}).items()}
        self._together(lambda: self._publish(files) if first else None)

    def _write_own(self, shards: Parts) -> Files:
        """This rank's files. The shards are first: a rank that failed before would be missed."""
        from trainer.shards import write_shards

        if not self._peers.first:
            self._enter("save", self.step)
        return {
            **write_shards(self.draft.aside, shards, self._peers.group),
            **self.draft.write(self._staged.parts),
        }

    def _begin(self) -> bool:
        self._enter("save", self.step)
        is_new = self.draft.begin()
        if not is_new:
            self._set_published()
        return is_new

    def _set_published(self) -> None:
        self.seconds = perf_counter() - self._began
        self.published = True

    def _publish(self, files: Files) -> None:
        self._enter("publish", self.step)
        self.draft.publish(self._manifest, files, self._contract)
        self._set_published()

    def _clear(self) -> None:
        """Rank 0 removes old ones. Without a thread the others wait here, under the checkpoint's
        limit: in the next step they would wait all the same, under that of a step."""
        alone = self._thread is not None
        if self._peers.first or not alone:
            self._enter("prune", self.step)
        if self._peers.first:
            self._prune()
        if not alone:
            self._peers.exchange(None, f"removal of old checkpoints after {self.draft.final}")

    def _prune(self) -> None:
        """Only now: before, the last checkpoint on disk would be gone with a crash."""
        checkpoint = self._config.checkpoint
        try:
            if self._contract.is_newest_attempt():
                newest, attempt = self.draft.final, self._contract.attempt
                prune(newest, checkpoint.keep, checkpoint.keep_best, attempt, self._broken)
        except OSError as error:  # nothing is lost by what stays
            print(f"trainer: old checkpoints stay: {error}", file=sys.stderr)

    def _together(self, act: Callable[[], T]) -> list[T | None]:
        """What act() returned on each rank; if it failed on one, the same error on all."""
        try:
            answer: Answer[T] = Answer(act())
        except Exception as error:  # whatever it is, the others wait for the answer
            answer = Answer(None, self._fault_of(self._or_superseded(error)))
        answers = self._peers.exchange(answer, f"checkpoint {self.draft.final}")
        faults = [answer.fault for answer in answers if answer.fault is not None]
        if faults:
            raise self._error_of(faults)
        return [answer.value for answer in answers]

    def _or_superseded(self, error: Exception) -> Exception:
        """Superseded instead, if it is so: a newer attempt removes what this one is writing."""
        try:
            refuse_if_superseded(self._contract)
        except Superseded as superseded:
            return superseded
        except OSError:  # the disk does not say; what it said before counts
            return error
        return error

    def _fault_of(self, error: Exception) -> Fault:
        me = self._peers.me
        if isinstance(error, Superseded):
            return Fault(str(error), "superseded")
        if (late := error_behind(error, TookTooLong)) is not None:
            return Fault(f"{me}: {late}", "late")
        free = free_space(self.draft.final.parent)
        if isinstance(error, PartNotWritten):
            return Fault(str(error), "refused", free)
        if (refusal := error_behind(error, OSError)) is not None:
            where = refusal.filename or self.draft.aside
            return Fault(f"{me}: {where}: {refusal.strerror or refusal}", "refused", free)
        traceback.print_exception(error)
        return Fault(f"{me}: {type(error).__name__}: {error}", "refused", free)

    def _error_of(self, faults: Sequence[Fault]) -> Exception:
        """What all ranks raise: they have the same faults."""
        for fault in faults:
            if fault.kind == "superseded":
                return Superseded(fault.reason)
        said = some(fault.reason for fault in faults)
        if any(fault.kind == "late" for fault in faults):
            return TookTooLong(self._late(said))
        return CheckpointNotWritten(
            f"checkpoint {self.draft.final} could not be written: {said} ({faults[0].free}). The"
            " one before is as it was; make room or mend the folder"
        )

    def _late(self, said: str) -> str:
        return (
            f"checkpoint {self.draft.final} was not written within timeouts.checkpoint"
            f" ({self._peers.timeout_s:g} s; raise it if the disk is only slow): {said}"
        )
