"""The batches of one rank, one after another, and the log of which samples they were."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import TrainerConfig
from trainer.contract import Contract
from trainer.limits import batch_wait_s
from trainer.parallelized import Parallelized
from trainer.sample_log import SampleLog
from trainer.samples import Indices, Samples, SampleStream, train_batches


class Feed:
    """An endless iterator over batches, int64 [micro, context + 1].

    taken: samples that all ranks together have taken before. With logging.samples the number of
    each sample comes with the batch from whoever fetched it, and is logged with its step.
    """

    def __init__(
        self,
        config: TrainerConfig,
        contract: Contract,
        samples: Samples,
        parallel: Parallelized,
        taken: int,
        device: torch.device,
    ) -> None:
        share = (parallel.data_rank, parallel.data_world_size)
        self._stream = SampleStream(len(samples), config.batch.micro, *share, config.seed, taken)
        self._log: SampleLog | None = None
        self._fetched = itertools.count()
        if config.logging.samples:
            self._log = SampleLog(
                contract.run_dir, contract.attempt, contract.rank, share, len(samples)
            )
        self._batches: Generator[Any, None, None] = train_batches(
            samples if self._log is None else Numbered(samples),
            self._stream,
            config.data.workers,
            timeout_s=batch_wait_s(config),
            pin=device.type != "cpu",
            rank=contract.rank,
        )

    def __next__(self) -> Tensor:
        if self._log is None:
            batch: Tensor = next(self._batches)
            return batch
        numbers, batch = next(self._batches)
        self._log.took(np.asarray(numbers), self._stream.places(next(self._fetched)))
        return batch

    def end_step(self, step: int) -> None:
        """The batches since the last call were those of `step`."""
        if self._log is not None:
            self._log.end_step(step)

    def sync(self) -> None:
        """What was logged outlasts the machine; to be called before a checkpoint."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        """End the loader's workers and close the log."""
        self._batches.close()
        if self._log is not None:
            self._log.close()


class Numbered:
    """Samples that come with their numbers."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: Indices) -> tuple[Indices, Tensor]:
        return indices, self._samples[indices]
