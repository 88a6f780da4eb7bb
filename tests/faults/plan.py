"""Which runs are disturbed, and where each of their attempts is killed."""

from __future__ import annotations

from typing import Any, NamedTuple

from runs import configuration

NUM_RANKS = 4  # with 2 a sum cannot depend on the order of the ranks
STEPS = 30
EVERY = 5  # steps from one checkpoint to the next
EVALUATE = 10
KEEP = 2

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "hybrid_shard": {"strategy": "hybrid_shard", "shard_group": 2},
}
FORMATS = ("full", "sharded")


class Cell(NamedTuple):
    """How a run shards its model and saves it."""

    strategy: str
    format: str = "full"
    asynchronous: bool = False

    def __str__(self) -> str:
        return f"{self.strategy}, {self.format}, {'async' if self.asynchronous else 'sync'}"

    def config(self, **changes: Any) -> dict[str, Any]:
        """Its trainer.json; with dropout, so that random states count too."""
        given = {f"parallelism__{key}": value for key, value in STRATEGIES[self.strategy].items()}
        settings = {
            "model__dropout": 0.1, "model__width": 64, "evaluation__every": EVALUATE,
            "checkpoint__every_steps": EVERY, "checkpoint__keep": KEEP,
            "checkpoint__format": self.format, "checkpoint__asynchronous": self.asynchronous,
        }  # fmt: skip
        return configuration(num_ranks=NUM_RANKS, steps=STEPS, **(given | settings | changes))


class Kill(NamedTuple):
    """kill -9 of `rank` at a place (see traps.py) of `step`: the steps done, 0 before training."""

    place: str
    step: int
    rank: int


class Case(NamedTuple):
    """A run whose first attempts are killed, one by each kill; the attempt after them ends."""

    cell: Cell
    kills: tuple[Kill, ...]
    workers: int = 0

    def config(self) -> dict[str, Any]:
        """Its trainer.json; with loader workers there is more that could be left running."""
        return self.cell.config(data__workers=self.workers)

    def __str__(self) -> str:
        return f"{self.cell}: {' '.join(f'{k.place}-{k.step}-r{k.rank}' for k in self.kills)}"


SYNC, ASYNC = False, True
CELLS = [
    Cell(strategy, form, asynchronous)
    for strategy in STRATEGIES
    for form in FORMATS
    for asynchronous in (SYNC, ASYNC)
]


def _case(
    strategy: str, form: str, asynchronous: bool, *kills: tuple[str, int, int], workers: int = 0
) -> Case:
    return Case(Cell(strategy, form, asynchronous), tuple(Kill(*kill) for kill in kills), workers)


WHOLE = [
    _case("ddp", "full", SYNC, ("start", 0, 3), ("step", 7, 2), ("publish", 15, 0),
          workers=1),
    _case("ddp", "full", SYNC, ("gathering", 5, 1), ("finding", 0, 0), ("exit", 30, 0)),
    _case("ddp", "full", ASYNC, ("collective", 8, 3), ("writing", 15, 0), ("evaluation", 20, 1)),
    _case("ddp", "full", ASYNC, ("publish", 10, 0), ("prune", 20, 0), ("done", 30, 0)),
    _case("ddp", "sharded", SYNC, ("save", 5, 2), ("load", 0, 1), ("prune", 15, 0),
          ("data", 22, 1)),
    _case("ddp", "sharded", SYNC, ("evaluation", 10, 3), ("restore", 0, 2), ("writing", 15, 1)),
    _case("ddp", "sharded", ASYNC, ("step", 6, 0), ("planning", 10, 2), ("exit", 30, 2)),
    _case("ddp", "sharded", ASYNC, ("save", 5, 1), ("writing", 15, 0), ("publish", 25, 0)),
    _case("hybrid_shard", "full", SYNC, ("finding", 0, 2), ("collective", 6, 1),
          ("writing", 15, 0)),
    _case("hybrid_shard", "full", SYNC, ("evaluation", 10, 0), ("publish", 20, 0),
          ("prune", 25, 0)),
    _case("hybrid_shard", "full", ASYNC, ("start", 0, 1), ("save", 5, 3), ("publish", 15, 0),
          ("gathering", 20, 2)),
    _case("hybrid_shard", "full", ASYNC, ("step", 9, 3), ("load", 0, 0), ("exit", 30, 1)),
    _case("hybrid_shard", "sharded", SYNC, ("planning", 5, 2), ("data", 12, 1),
          ("publish", 20, 0)),
    _case("hybrid_shard", "sharded", SYNC, ("save", 10, 0), ("restore", 0, 3), ("done", 30, 0)),
    _case("hybrid_shard", "sharded", ASYNC, ("collective", 3, 2), ("writing", 10, 2),
          ("prune", 20, 0)),
    _case("hybrid_shard", "sharded", ASYNC, ("publish", 5, 0), ("evaluation", 20, 2),
          ("publish", 30, 0), workers=1),
]  # fmt: skip
SHORT = [
    _case("ddp", "full", SYNC, ("start", 0, 3), ("exit", 30, 0)),
    _case("ddp", "full", ASYNC, ("publish", 10, 0)),
    _case("ddp", "sharded", SYNC, ("prune", 15, 0), ("restore", 0, 1)),
    _case("ddp", "sharded", ASYNC, ("planning", 10, 2)),
    _case("hybrid_shard", "full", SYNC, ("load", 0, 2), ("collective", 6, 1)),
    _case("hybrid_shard", "full", ASYNC, ("save", 5, 3), ("data", 7, 1)),
    _case("hybrid_shard", "sharded", SYNC, ("evaluation", 10, 1)),
    _case("hybrid_shard", "sharded", ASYNC, ("step", 6, 2), ("writing", 10, 2), workers=1),
]
