"""What a checkpoint holds, taken from the training at one moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainer.changes import Settings
from trainer.full_state import Buffers
from trainer.parallelized import Parallelized
from trainer.peers import Peers
from trainer.state import FORMAT, MODEL_FILE, OPTIMIZER_FILE, TRAINER_FILE, Progress, random_state

if TYPE_CHECKING:  # torch's part of it takes time to import
    from trainer.shards import Parts


@dataclass(frozen=True)
class Staged:
    """What one rank writes.

    parts: by file name, as torch.save takes it; only rank 0 has any. shards: what it holds of the
    state, for the formats where every rank writes; None for full.
    """

    format: str
    parts: dict[str, object]
    shards: Parts | None = None


class Staging:
    """Takes the state of the training, on all ranks at the same step; a collective.

    What is copied for a save beside the training keeps its memory, for the next one.
    """

    def __init__(
        self,
        parallel: Parallelized,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        peers: Peers,
        layout: str,
    ) -> None:
        self._parallel, self._optimizer, self._settings = parallel, optimizer, settings
        self._peers, self._format = peers, layout
        self._buffers: Buffers = {}
        self._old_shards: Parts | None = None

    def __call__(self, progress: Progress, *, aside: bool) -> Staged:
        """aside: as copies, which stay as they are while the training goes on."""
        parts: dict[str, object] = {TRAINER_FILE: self._rest(progress)}
        if self._format != "sharded":
            # What earlier copies hold is used again: at a stop there may be no memory for more.
            parts |= self._whole(self._buffers if aside or self._buffers else None)
        shards = self._shards(aside) if self._format != "full" else None
        return Staged(self._format, parts if self._peers.first else {}, shards)

    def _whole(self, into: Buffers | None) -> dict[str, object]:
        keep = self._peers.first
        weights = self._parallel.weights(keep, into)
        moments = self._parallel.moments(self._optimizer, keep, into)
        return {MODEL_FILE: weights, OPTIMIZER_FILE: moments}

    def _shards(self, aside: bool) -> Parts:
        from trainer.sharded_state import staged

        shards = staged(self._parallel, self._optimizer, self._old_shards)
        self._old_shards = shards if aside else None
        return shards

    def _rest(self, progress: Progress) -> dict[str, Any]:
        parallel = self._parallel
        randoms = self._peers.gather(random_state(parallel.device), "random states of the ranks")
        return {
            "format": FORMAT,
            "progress": asdict(progress),
            "settings": self._settings,
            "random": randoms,
            "scaler": parallel.scaler.state() if parallel.scaler else None,
        }
