"""When and how a run is saved: at once or beside the training, and what a failure does."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from time import perf_counter
from typing import Protocol

from trainer import phase
from trainer.checkpoint import Manifest
from trainer.config import TrainerConfig
from trainer.contract import Contract
from trainer.flight import Flight
from trainer.limits import Limit
from trainer.peers import Peers
from trainer.staging import Staged
from trainer.state import Progress
from trainer.writing import CheckpointNotWritten

# How long a rank that ends by an error waits for the checkpoint that is being written: it may be
# nearly done, and is then worth more than these seconds.
LAST_WAIT_S = 10.0


class Stage(Protocol):
    """Gives the state of now, as it is written; a collective. See staging.Staging."""

    def __call__(self, progress: Progress, *, aside: bool) -> Staged:
        """aside: in memory that the training does not change."""


class Tell(Protocol):
    """Writes an event; see metrics.Metrics.event."""

    def __call__(self, name: str, step: int, **values: object) -> None: ...


class Saver:
    """Saves a run. All ranks call the same methods after the same steps.

    tell: where events go. broken: checkpoints that are known not to be whole. last_step: of the
    checkpoint that the run goes on from, 0 without one. At most one checkpoint is on its way.

    Attributes:
        last_s: seconds from the beginning of the newest checkpoint until it was on disk; None
            before the first one is.
    """

    def __init__(
        self,
        config: TrainerConfig,
        contract: Contract,
        peers: Peers,
        stage: Stage,
        tell: Tell,
        broken: Collection[Path] = (),
        last_step: int = 0,
    ) -> None:
        self._config, self._contract, self._peers = config, contract, peers
        self._stage, self._tell, self._broken = stage, tell, list(broken)
        self._flight: Flight | None = None
        self._last_step, self._saved_step = last_step, -1
        self.last_s: float | None = None

    def save(self, progress: Progress, *, final: bool) -> None:
        """Save the state of now; it is on disk when this returns, unless asynchronous is set.

        final: the training ends here, so it is written at once. The phase is that of a save, also
        for the wait: it is for a checkpoint. Waits for the one before, if that
        is on its way, and raises what finish() raises.
        """
        self.finish()
        if progress.step == self._saved_step:
            return
        self._peers.allow(Limit(self._config.checkpoint.timeout_s, "timeouts.checkpoint"))
        aside = self._config.checkpoint.asynchronous and not final
        began = perf_counter()
        staged = self._stage(progress, aside=aside)
        manifest = manifest_of(
            progress, self._last_step, self._config, self._contract, staged.format
        )
        self._flight = Flight(
            manifest, staged, self._config, self._contract, self._peers, self._broken, began
        )
        if aside:
            self._flight.start()
            self._flight.blocked_s = perf_counter() - began
        else:
            self._flight.run(phase.enter)
            self.finish(final=final)

    def notice(self) -> None:
        """Tell of a checkpoint that has meanwhile been published; waits for nothing."""
        if self._flight is not None and self._flight.published:
            self._tell_of(self._flight)

    def finish(self, *, final: bool = False) -> None:
        """Wait for the checkpoint that is on its way, if there is one.

        Raises CheckpointNotWritten if it failed, on all ranks, unless checkpoint.on_failure says to
        go on and it was not the final one; Superseded, TookTooLong or NoAnswer in any case.
        """
        flight = self._flight
        if flight is None:
            return
        try:
            flight.wait()
            self._saved_step = self._last_step = flight.step
            self.last_s = flight.seconds
        except CheckpointNotWritten as error:
            if final or self._config.checkpoint.on_failure == "stop":
                raise
            self._tell("checkpoint_failed", flight.step, reason=str(error))
        finally:
            self.notice()
            self._flight = None

    def close(self) -> None:
        """Give a checkpoint that is on its way a last chance, when the training has failed."""
        if self._flight is not None:
            self._flight.join(LAST_WAIT_S)
            self.notice()

    def _tell_of(self, flight: Flight) -> None:
        if not flight.told:
            flight.told = True
            self._tell(
                "checkpoint",
                flight.step,
                path=flight.draft.final.name,
                seconds=round(flight.seconds, 3),
                blocked_s=round(flight.blocked_s, 3),
            )


def manifest_of(
    progress: Progress, last_step: int, config: TrainerConfig, contract: Contract, layout: str
) -> Manifest:
    """The manifest of a checkpoint of now, in the format `layout`, without its files.

    The last validation speaks for it if it was made after the checkpoint before, under
    checkpoint.every_steps that which a run without a stop would have made; but never that of the
    untrained model.
    """
    every = config.checkpoint.every_steps
    since = last_step if every is None else max(0, progress.step - every)
    measured = progress.validation_loss is not None and progress.validated_step > since
    return Manifest(
        step=progress.step,
        attempt=contract.attempt,
        world_size=contract.world_size,
        strategy=config.parallelism.strategy,
        format=layout,
        validation_loss=progress.validation_loss if measured else None,
        validation_step=progress.validated_step if measured else None,
    )
