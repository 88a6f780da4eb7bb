"""The cells of a bench: which settings, under which names, and what each sets in the job."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.spec.job import MAX_NAME

DIGEST_DIGITS = 6
# Steps left out of the medians: the first ones make buffers and connections, and in the second and
# third the trainer counts its collectives.
WARM_UP_STEPS = 5
LEAST_STEPS = WARM_UP_STEPS + 3
# glibc keeps blocks below a threshold that grows with use, so that a process seems to hold what it
# has freed; with a fixed one (mallopt(3)) the peak of the resident memory is what it needs.
CPU_ENVIRONMENT = ("env.MALLOC_MMAP_THRESHOLD_=65536", "env.MALLOC_TRIM_THRESHOLD_=65536")


@dataclass(frozen=True)
class Cell:
    """One setting of a bench.

    Args:
        layers: of the bundled GPT; None for the job's own.
    """

    strategy: str
    nodes: int
    micro: int
    layers: int | None = None

    @property
    def label(self) -> str:
        """The cell's part of a run's name."""
        layers = f"-l{self.layers}" if self.layers is not None else ""
        return f"{self.strategy.replace('_', '-')}-n{self.nodes}-m{self.micro}{layers}"

    @property
    def own_sets(self) -> dict[str, str | int]:
        """What differs between cells with the same nodes, by key with dots."""
        found: dict[str, str | int] = {
            "parallelism.strategy": self.strategy,
            "train.batch.micro": self.micro,
        }
        if self.layers is not None:
            found["train.model.layers"] = self.layers
        return found

    def sets(self, job: str, steps: int) -> list[str]:
        """Return the `--set` options that make the job a run of this cell."""
        own = [f"{key}={value}" for key, value in self.own_sets.items()]
        return [*common_sets(run_name(job, self.label), self.nodes, steps), *own]


def common_sets(name: str, nodes: int, steps: int) -> list[str]:
    """Return what each run of a bench sets: few steps, each of them told, and nothing beside them
    but an evaluation by one batch and a checkpoint at the end."""
    return [
        f"name={name}",
        f"resources.nodes={nodes}",
        f"train.steps={steps}",
        "train.schedule.warmup_steps=0",
        f"train.evaluation.every={steps}",
        "train.evaluation.batches=1",
        "train.logging.every=1",
        "train.logging.tensorboard=false",
        "train.logging.traffic=true",
        f"checkpoint.every={steps}",
        "attempts.failures=0",
    ]


def run_name(job: str, label: str) -> str:
    """Return JOB-LABEL, shortened to what a run's name may have, with a digest of the whole."""
    whole = f"{job}-{label}"
    if len(whole) <= MAX_NAME:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST_DIGITS]
    room = MAX_NAME - DIGEST_DIGITS - 1
    return f"{whole[:room].rstrip('-')}-{digest}"


def all_cells(
    strategies: Sequence[str],
    nodes: Sequence[int],
    micros: Sequence[int],
    layers: Sequence[int | None] = (None,),
) -> list[Cell]:
    """Return all combinations; strategies change fastest."""
    product = itertools.product(nodes, layers, micros, strategies)
    found = [Cell(strategy, n, micro, depth) for n, depth, micro, strategy in product]
    return list(dict.fromkeys(found))


def sweep_set(cells: Sequence[Cell]) -> str:
    """Return the `--set` option that makes elements of cells with the same nodes."""
    entries = [
        "{" + ", ".join(f"{key}: {value}" for key, value in cell.own_sets.items()) + "}"
        for cell in cells
    ]
    return f"sweep={{list: [{', '.join(entries)}]}}"
