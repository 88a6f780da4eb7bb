"""What a checkpoint holds, taken from the training at one moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from trainer.changes import Settings
from trainer.full_state import Buffers
from trainer.parallelized import Parallelized
from trainer.peers import Peers
from trainer.state import FORMAT, MODEL_FILE, OPTIMIZER_FILE, TRAINER_FILE, Progress, random_state


@dataclass(frozen=True)
class Staged:
    """What one rank writes. parts: by file name, as torch.save takes it; only rank 0 has any."""

    format: str
    parts: dict[str, object]


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

    def __call__(self, progress: Progress, *, aside: bool) -> Staged:
        """aside: as copies, which stay as they are while the training goes on."""
        keep, into = self._peers.first, self._buffers if aside else None
        rest = self._rest(progress)
        weights = self._parallel.weights(keep, into)
        moments = self._parallel.moments(self._optimizer, keep, into)
        parts: dict[str, object] = {
            MODEL_FILE: weights, OPTIMIZER_FILE: moments, TRAINER_FILE: rest
        }  # fmt: skip
        return Staged(self._format, parts if keep else {})

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
