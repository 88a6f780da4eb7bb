"""The cells of the matrix: which runs are compared, and with which run of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runs import configuration

NUM_RANKS = 4  # with 2 a sum cannot depend on the order of the ranks
STEPS = 100
SAMPLES_PER_STEP = 16
ACCUMULATIONS = (1, 4)
PRECISIONS = ("fp32", "bf16")

# Sizes that no rank count divides (34 and 18 rows over 4 ranks), so that padding is seen.
MODEL = {"layers": 2, "heads": 2, "width": 34, "context": 18}
VOCABULARY = 256  # bytes
# AdamW moves each weight by about the rate, whatever the size of its gradient. At three times this
# rate the first roundings grew to 2e-6 of the loss within 100 steps (DDP on 4 ranks); at this one
# they stay below 1e-6.
LEARNING_RATE = 1e-3

FSDP1 = {"fsdp__version": 1}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "full_shard": {"strategy": "full_shard"},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "hybrid_shard 2x2": {"strategy": "hybrid_shard", "shard_group": 2},
    "no_shard": {"strategy": "no_shard"},
    "tensor 2 x shard 2": {"strategy": "full_shard", "tensor": 2},
    "full_shard, FSDP1": {"strategy": "full_shard", **FSDP1},
    "shard_grad_op, FSDP1": {"strategy": "shard_grad_op", **FSDP1},
    "hybrid_shard 2x2, FSDP1": {"strategy": "hybrid_shard", "shard_group": 2, **FSDP1},
    "no_shard, FSDP1": {"strategy": "no_shard", **FSDP1},
}


@dataclass(frozen=True)
class Cell:
    """One run.

    sync: which micro-batches gradients are summed with, `last` or `each`. steps: how many of the
    STEPS that the schedule is for are made.
    """

    strategy: str
    precision: str
    accumulation: int
    sync: str = "last"
    steps: int = STEPS
    num_ranks: int = NUM_RANKS

    @property
    def parallelism(self) -> dict[str, Any]:
        """What the strategy's name stands for."""
        return STRATEGIES[self.strategy]

    @property
    def uses_fsdp1(self) -> bool:
        return "fsdp__version" in self.parallelism

    @property
    def micro(self) -> int:
        """Sequences of a micro-batch of one rank."""
        data_ranks = self.num_ranks // int(self.parallelism.get("tensor", 1))
        return SAMPLES_PER_STEP // data_ranks // self.accumulation

    @property
    def alone(self) -> Cell:
        """One process with the whole batch, which computes in the same way.

        bf16 is autocast under DDP, and narrow parameters under FSDP.
        """
        whole = self.precision == "fp32" or self.strategy in ("ddp", "no_shard")
        return Cell("ddp" if whole else "full_shard", self.precision, 1, num_ranks=1)

    def config(self) -> dict[str, Any]:
        """Its trainer.json."""
        given = {f"parallelism__{key}": value for key, value in self.parallelism.items()}
        sizes = {f"model__{key}": value for key, value in MODEL.items()}
        return configuration(
            num_ranks=self.num_ranks, steps=STEPS, logging__every=self.steps,
            optimizer__lr=LEARNING_RATE,
            batch={"micro": self.micro, "accumulation": self.accumulation},
            parallelism__precision=self.precision, parallelism__gradient_sync=self.sync,
            **given, **sizes,
        )  # fmt: skip


def sync_of(strategy: str, precision: str, accumulation: int) -> str:
    """`last`, but `each` with FSDP1 and narrow numbers, which it would add up as they are."""
    narrow = strategy.endswith("FSDP1") and precision != "fp32" and accumulation > 1
    return "each" if narrow else "last"


def cells_of(strategy: str) -> list[Cell]:
    """The cells of a strategy; the last one is short, and sums gradients with each micro-batch."""
    curves = [
        Cell(strategy, precision, accumulation, sync_of(strategy, precision, accumulation))
        for precision in PRECISIONS
        for accumulation in ACCUMULATIONS
    ]
    return [*curves, Cell(strategy, "fp32", max(ACCUMULATIONS), "each", steps=4)]


CELLS = [cell for strategy in STRATEGIES for cell in cells_of(strategy)]
ALONE = list(dict.fromkeys(cell.alone for cell in CELLS))
