"""A cell, run on real ranks: its losses and norms, what it holds, and what it sends."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from cells import ALONE, Cell, cells_of
from ranks import run_ranks
from runs import Run, in_group
from theory import Held
from trainer.counting import Collective, Counting
from trainer.loop import Trainer
from trainer.norms import local

WORLD_TIMEOUT_S = 900
RECORDER_ENTRIES = 64  # the last ones; each has a running number


@dataclass(frozen=True)
class Measured:
    """One cell.

    losses: of the global batch, by step. norms: of its gradient, by step, on rank 0. held and
    collectives: by rank; the latter of the first and of the last step. unseen: collectives of
    those steps that the flight recorder has and the count has not, by rank.
    """

    losses: list[float]
    norms: list[float]
    held: list[Held]
    collectives: list[list[Counter[Collective]]]
    unseen: list[int]


@dataclass(frozen=True)
class OfRank:
    """What one rank tells of a cell."""

    norms: list[float]
    held: Held
    collectives: list[Counter[Collective]]
    unseen: int


@lru_cache(maxsize=1)
def alone(root: Path) -> dict[Cell, Measured]:
    """The runs of one process, each with the whole batch."""
    return _measure(ALONE, root / "alone")


@lru_cache(maxsize=1)
def measure(strategy: str, root: Path) -> dict[Cell, Measured]:
    """All cells of a strategy, in one world."""
    return _measure(cells_of(strategy), root / strategy.replace(" ", "-"))


def _measure(cells: Sequence[Cell], root: Path) -> dict[Cell, Measured]:
    run = Run(root)
    run.write_text()
    run.run_dir.mkdir()
    told = run_ranks(cells[0].num_ranks, _on_rank, run, cells, timeout_s=WORLD_TIMEOUT_S)
    reports = [line["losses"] for line in run.metrics() if "losses" in line]
    found = {}
    for cell, losses, of_ranks in zip(cells, reports, zip(*told, strict=True), strict=True):
        found[cell] = Measured(
            losses,
            of_ranks[0].norms,
            [rank.held for rank in of_ranks],
            [rank.collectives for rank in of_ranks],
            [rank.unseen for rank in of_ranks],
        )
    return found


def _on_rank(run: Run, cells: Sequence[Cell]) -> list[OfRank]:
    faulthandler.dump_traceback_later(WORLD_TIMEOUT_S - 10)  # instead of that of ranks.py
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(RECORDER_ENTRIES)
    steps = iter([cell.steps for cell in cells])
    configs = [cell.config() for cell in cells]
    with contextlib.redirect_stdout(io.StringIO()):  # metrics are in their file too
        told: list[OfRank] = in_group(run, configs, lambda trainer: _train(trainer, next(steps)))
    return told


def _train(trainer: Trainer, steps: int) -> OfRank:
    """Train so many steps; the last one reports, so the one before it is counted."""
    norms = _norms_of(trainer)
    counted, unseen = [], 0
    for step in range(1, steps + 1):
        if step not in (1, steps - 1):
            trainer.advance()
            continue
        with Counting() as counting:
            trainer.advance()
        counted.append(counting.seen)
        unseen += counting.unseen
    return OfRank([norm.item() for norm in norms], _held(trainer), counted, unseen)


def _norms_of(trainer: Trainer) -> list[Tensor]:
    """A list to which each coming step adds its gradient norm."""
    norms: list[Tensor] = []
    clip = trainer.parallel.clip

    def heard(max_norm: float) -> Tensor:
        norms.append(clip(max_norm))
        return norms[-1]

    trainer.parallel.clip = heard  # type: ignore[method-assign]
    return norms


# What a rank holds.


def _held(trainer: Trainer) -> Held:
    parameters = trainer.parallel.trainable
    states = trainer.optimizer.state.values()
    return Held(
        storage_bytes(parameters),
        storage_bytes(p.grad for p in parameters if p.grad is not None),
        sum(local(v).nbytes for state in states for v in state.values() if isinstance(v, Tensor)),
    )


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """All memory behind some tensors, padding included, each piece once."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
