"""The order of samples, and their fetching here and by worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import select
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from ranks import Ended, end_ranks, run_ranks
from trainer.contract import ConfigurationError
from trainer.samples import (
    Indices,
    SampleStream,
    Synthetic,
    Windows,
    _end_with,
    train_batches,
    validation_batches,
)


def take(stream: SampleStream, num_batches: int) -> list[Indices]:
    return list(itertools.islice(stream, num_batches))


@pytest.mark.parametrize(
    ("num_samples", "world_size", "micro"), [(24, 4, 3), (24, 2, 4), (24, 4, 5), (7, 1, 2)]
)
def test_the_order_is_that_of_distributed_sampler(
    num_samples: int, world_size: int, micro: int
) -> None:
    num_epochs = 4
    for rank in range(world_size):
        sampler: DistributedSampler[int] = DistributedSampler(
            range(num_samples),  # type: ignore[arg-type]
            num_replicas=world_size,
            rank=rank,
            seed=5,
        )
        expected: list[int] = []
        for epoch in range(num_epochs):
            sampler.set_epoch(epoch)
            expected += list(sampler)
        stream = SampleStream(num_samples, micro, rank, world_size, seed=5)
        batches = take(stream, len(expected) // micro)
        assert np.concatenate(batches).tolist() == expected[: len(batches) * micro]


sizes = st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))


@settings(deadline=None)
@given(sizes)
def test_over_all_ranks_each_epoch_takes_each_sample_once(size: tuple[int, int, int, int]) -> None:
    num_samples, world_size, micro, seed = size
    num_batches = -(-2 * num_samples // (world_size * micro)) + 1
    by_rank = [
        np.concatenate(take(SampleStream(num_samples, micro, rank, world_size, seed), num_batches))
        for rank in range(world_size)
    ]
    taken = np.stack(by_rank, axis=1).ravel()  # in the order of the common stream
    for epoch in range(2):
        part = taken[epoch * num_samples : (epoch + 1) * num_samples]
        assert sorted(part.tolist()) == list(range(num_samples))


@settings(deadline=None)
@given(sizes, st.integers(0, 20))
def test_a_stream_continues_from_any_offset(size: tuple[int, int, int, int], done: int) -> None:
    num_samples, world_size, micro, seed = size
    whole = take(SampleStream(num_samples, micro, 0, world_size, seed), done + 5)
    offset = done * micro * world_size
    rest = take(SampleStream(num_samples, micro, 0, world_size, seed, offset), 5)
    assert np.array_equal(np.stack(whole[done:]), np.stack(rest))


def test_other_numbers_of_ranks_take_the_same_samples_in_each_step() -> None:
    for ranks, micro in ((4, 2), (2, 4), (1, 8)):
        streams = [take(SampleStream(30, micro, rank, ranks, 1), 12) for rank in range(ranks)]
        steps = [sorted(np.concatenate(step).tolist()) for step in zip(*streams, strict=True)]
        if ranks == 4:
            expected = steps
        assert steps == expected


def test_every_token_but_the_first_is_predicted_once() -> None:
    windows = Windows([np.arange(50, dtype=np.uint16)], context=7, vocab_size=50)
    batch = windows[np.arange(len(windows))]
    assert batch[:, 1:].flatten().tolist() == list(range(1, 50))
    assert batch.dtype == torch.int64


def test_windows_of_several_arrays_do_not_cross() -> None:
    arrays = [np.arange(*ends, dtype=np.uint8) for ends in ((0, 9), (0, 2), (20, 30))]
    windows = Windows(arrays, context=4, vocab_size=256)
    assert len(windows) == 4
    assert windows[np.array([3, 0, 2, 1])][:, 0].tolist() == [24, 0, 20, 4]


def test_a_token_outside_the_vocabulary_is_a_fault_of_the_configuration() -> None:
    windows = Windows([np.arange(50, dtype=np.uint16)], context=4, vocab_size=10)
    with pytest.raises(ConfigurationError, match="outside the vocabulary of 10"):
        windows[np.array([8])]


def test_synthetic_samples_depend_on_seed_and_number_alone() -> None:
    one, other = Synthetic(range(100), 8, 50, seed=3), Synthetic(range(10, 20), 8, 50, seed=3)
    assert torch.equal(one[np.array([12, 15])], other[np.array([2, 5])])
    assert not torch.equal(one[np.arange(9)], Synthetic(range(100), 8, 50, seed=4)[np.arange(9)])
    assert int(one[np.arange(100)].max()) < 50


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 8))
def test_validation_takes_each_sample_once(count: int, world_size: int, micro: int) -> None:
    samples = Synthetic(range(count), 2, 1000, seed=0)
    taken = [
        row
        for rank in range(world_size)
        for batch in validation_batches(samples, micro, rank, world_size, None)
        for row in batch.tolist()
    ]
    assert sorted(taken) == sorted(samples[np.arange(count)].tolist())


def test_validation_takes_no_more_batches_than_asked() -> None:
    samples = Synthetic(range(100), 2, 1000, seed=0)
    assert [len(batch) for batch in validation_batches(samples, 3, 1, 2, limit=2)] == [3, 3]


SAMPLES = Synthetic(range(64), 8, 256, seed=1)
STREAM = SampleStream(64, 4, rank=1, world_size=2, seed=9)


def with_workers() -> list[list[list[int]]]:
    """Batches by two workers, which are sent every signal of a stop on the way."""
    batches = train_batches(SAMPLES, STREAM, workers=2, timeout_s=30, pin=False)
    taken = [next(batches).tolist()]
    workers = multiprocessing.active_children()
    for worker in workers:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            os.kill(worker.pid or 0, number)
    taken += [next(batches).tolist() for _ in range(40)]
    batches.close()
    for worker in workers:
        worker.join(10)
    if multiprocessing.active_children():
        raise AssertionError("workers are left")
    return taken


def test_workers_fetch_the_same_and_ignore_signals() -> None:
    here = train_batches(SAMPLES, STREAM, workers=0, timeout_s=30, pin=False)
    expected = [next(here).tolist() for _ in range(41)]
    assert run_ranks(1, with_workers) == [expected]


def die_with_workers(pids: str) -> None:
    batches = train_batches(SAMPLES, STREAM, workers=2, timeout_s=30, pin=False)
    next(batches)
    with open(pids, "w") as file:
        file.write(" ".join(str(worker.pid) for worker in multiprocessing.active_children()))
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_die_with_their_rank(tmp_path: object) -> None:
    pids = f"{tmp_path}/pids"
    assert end_ranks(1, die_with_workers, pids) == [Ended(None, None, -signal.SIGKILL)]
    with open(pids) as file:
        workers = [int(pid) for pid in file.read().split()]
    assert len(workers) == 2
    assert all(has_ended(pid, within_s=20) for pid in workers)


def outlive_parent() -> None:
    _end_with(os.getppid() + 1, 0)  # what a worker sees whose parent ended before it could ask


def test_a_worker_whose_rank_ended_before_it_began_ends_too() -> None:
    assert end_ranks(1, outlive_parent) == [Ended(None, None, 1)]


def has_ended(pid: int, within_s: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)
