"""Samples by number, the order in which each rank takes them, and how batches are fetched.

A sample is a window of context + 1 tokens; windows lie one context apart, so that each token but
the first is predicted exactly once an epoch.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainer.contract import ConfigurationError
from trainer.stacks import Sheet

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Item = TypeVar("Item", covariant=True)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Samples(Protocol):
    """Numbered samples, fetched a batch at a time."""

    def __len__(self) -> int:
        """How many samples there are."""

    def __getitem__(self, indices: Indices) -> Tensor:
        """The samples of these numbers, int64 [B, context + 1]."""


class Batched(Protocol[Item]):
    """What gives an item for the numbers of a batch."""

    def __getitem__(self, indices: Indices) -> Item:
        """The item of these numbers."""


class Windows:
    """The windows of one or more token arrays; no window crosses from one array to the next."""

    def __init__(self, arrays: Sequence[Array], context: int, vocab_size: int) -> None:
        long_enough = [array for array in arrays if len(array) > context]
        self._views = [_windows(array, context) for array in long_enough]
        self._ends = np.cumsum([len(view) for view in self._views], dtype=np.int64)
        self._context = context
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, indices: Indices) -> Tensor:
        rows = self._views[0][indices] if len(self._views) == 1 else self._gather(indices)
        if rows.size and rows.max() >= self._vocab_size:
            raise ConfigurationError(
                f"train.data: token {rows.max()} is outside the vocabulary of {self._vocab_size}; "
                "set train.model.vocab_size to that of the tokenizer that made the files, "
                "and check train.data.dtype"
            )
        return torch.from_numpy(rows.astype(np.int64))

    def _gather(self, indices: Indices) -> Array:
        which = np.searchsorted(self._ends, indices, side="right")
        rows = np.empty((len(indices), self._context + 1), np.int64)
        for row, (view, index) in enumerate(zip(which, indices, strict=True)):
            first = self._ends[view - 1] if view else 0
            rows[row] = self._views[view][index - first]
        return rows


class Synthetic:
    """Made-up samples that can be learned: each counts through the vocabulary in its own stride.

    The numbers depend on the seed and the sample's number alone.
    """

    def __init__(self, samples: range, context: int, vocab_size: int, seed: int) -> None:
        self._samples = samples
        self._steps = np.arange(context + 1, dtype=np.uint64)
        self._vocab_size = np.uint64(vocab_size)
        self._seed = np.uint64(seed)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: Indices) -> Tensor:
        numbers = (indices + self._samples.start).astype(np.uint64)
        mixed = _mix(_mix(numbers) ^ self._seed)
        start = (mixed >> np.uint64(32))[:, None]
        stride = (mixed & np.uint64(7))[:, None] + np.uint64(1)
        tokens = (start + stride * self._steps) % self._vocab_size
        return torch.from_numpy(tokens.astype(np.int64))


@dataclass(frozen=True)
class SampleStream:
    """The order in which one rank takes samples: an endless stream of batches of numbers.

    All ranks share one stream of samples in which epoch e is a permutation drawn from seed + e, in
    torch's DistributedSampler order. Micro-batch k of this rank has as element j the sample at
    offset + (k * micro + j) * world_size + rank. An epoch's end carries over into the next, so no
    sample is lost, padded or taken twice. `offset` (samples taken before by all ranks together) is
    the whole state.
    """

    num_samples: int
    micro: int
    rank: int
    world_size: int
    seed: int
    offset: int = 0

    def places(self, batch: int) -> Indices:
        """Where the samples of a batch lie in the common stream; batches count from 0."""
        first = self.offset + self.rank + batch * self.micro * self.world_size
        return first + np.arange(self.micro, dtype=np.int64) * self.world_size

    def __iter__(self) -> Iterator[Indices]:
        epoch, order = -1, np.empty(0, np.int64)
        for places in map(self.places, itertools.count()):
            first, last = int(places[0]) // self.num_samples, int(places[-1]) // self.num_samples
            if first == last:
                if first != epoch:
                    epoch, order = first, self._order(first)
                yield order[places - epoch * self.num_samples]
            else:
                yield self._across_epochs(places)

    def _order(self, epoch: int) -> Indices:
        draw = torch.Generator().manual_seed(self.seed + epoch)
        numbers: Indices = torch.randperm(self.num_samples, generator=draw).numpy()
        return numbers

    def _across_epochs(self, places: Indices) -> Indices:
        epochs, within = np.divmod(places, self.num_samples)
        parts = [self._order(int(e))[within[epochs == e]] for e in np.unique(epochs)]
        return np.concatenate(parts)


def train_batches(
    samples: Batched[Item],
    stream: SampleStream,
    workers: int,
    timeout_s: float,
    pin: bool,
    rank: int = 0,
) -> Generator[Item, None, None]:
    """Endless items, those of `samples` in the order of `stream`, fetched here or by workers.

    Close the generator when done: the workers ignore the signal by which Python ends them at exit.
    timeout_s is the longest wait for a worker's batch; RuntimeError, which names `rank`, after it.
    """
    if workers == 0:
        for indices in stream:
            yield samples[indices]
    loader: DataLoader[Item] = DataLoader(
        samples,  # type: ignore[arg-type]  # one index of the loader is a batch of numbers
        batch_size=None,
        sampler=stream,
        num_workers=workers,
        timeout=timeout_s,
        pin_memory=pin,
        worker_init_fn=partial(_end_with, os.getpid()),
        # The loader draws a seed for its workers, and not from the state that dropout draws from.
        generator=torch.Generator().manual_seed(stream.seed),
    )
    others = multiprocessing.active_children()
    with _blocked_signals():
        batches = iter(loader)
    started = [child for child in multiprocessing.active_children() if child not in others]
    try:
        for number in itertools.count():
            try:
                item = next(batches)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                raise _late(rank, number % workers, timeout_s) from error
            yield item
    finally:
        del batches  # asks the workers to end and waits some seconds
        for worker in started:
            worker.kill()


def _late(rank: int, worker: int, timeout_s: float) -> RuntimeError:
    """Batches are fetched by the workers in turn, so the one that hangs is known by its number."""
    return RuntimeError(
        f"rank {rank}: loader worker {worker} gave no batch within {timeout_s:g} s"
        ": see whether the file system of train.data answers; if it is only slow, raise"
        " timeouts.step or train.data.workers"
    )


def validation_batches(
    samples: Samples | None, micro: int, rank: int, world_size: int, limit: int | None
) -> Iterator[Tensor]:
    """This rank's share of the validation samples, each taken once over all ranks.

    limit: batches per rank at most; the last batch may be smaller. None samples give no batch.
    """
    if samples is None:
        return iter(())
    mine = np.arange(rank, len(samples), world_size, dtype=np.int64)
    if limit is not None:
        mine = mine[: limit * micro]
    return (samples[mine[i : i + micro]] for i in range(0, len(mine), micro))


def _windows(array: Array, context: int) -> Array:
    """Read-only view [N, context + 1] of the windows of one array."""
    view: Array = np.lib.stride_tricks.sliding_window_view(array, context + 1)[::context]
    return view


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable ..." (OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """What is started in the block never sees a signal that asks for a stop.

    A loader worker ends with its rank, and not before: a stop still needs its batches.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int, _worker: int) -> None:
    """From now on this process is killed when its parent ends, which may be so already; and it
    writes its stacks when it is asked for them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    Sheet()  # a worker that hangs is asked for its stacks
