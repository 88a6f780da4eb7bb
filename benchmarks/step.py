"""The trainer's step against bare torch and other libraries: same model, data order, optimizer.

All contestants live in the same two processes and take turns, block by block, in an order that is
drawn anew for each round; the CPU time of the process is what counts. The trainer's blocks hold all
that it does in ordinary steps: data, clipping, schedule, stop protocol, and a metrics line each 10
steps. The others do what their users write: no metrics, no stop.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks import bare, frameworks
from benchmarks.forked import in_ranks
from benchmarks.paired import compare
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.stop import StopProtocol

NUM_RANKS = 2
ROUNDS = 15
DEADLINE_S = 1800
NUM_DROPPED = 10  # steps of each before the first round

# name: layers, heads, width, context, micro-batch, steps of one block
SIZES = {
    "compute-bound (d=256, L=4, T=128, B=4)": (4, 4, 256, 128, 4, 10),
    "overhead-bound (d=32, L=1, T=32, B=1)": (1, 2, 32, 32, 1, 100),
}
Times = dict[str, list[float]]


class Contestant(Protocol):
    """Something that trains."""

    def advance(self, steps: int) -> None:
        """Do this many optimizer steps."""


def rows() -> list[str]:
    """Measure, and return lines for the table: the trainer against each of the others."""
    lines = []
    for strategy in ("ddp", "full_shard"):
        for name, size in SIZES.items():
            times = measure(strategy, *size)
            trainer = times.pop("trainer")
            for other, theirs in times.items():
                pair = compare(trainer, theirs)
                lines.append(pair.row(f"step, {strategy}, {name}: trainer : {other}", _limit(name)))
    return lines


def _limit(size: str) -> str:
    return "bare: interval below 1.03" if size.startswith("compute") else "bare: + 0.5 ms"


def measure(
    strategy: str, layers: int, heads: int, width: int, context: int, micro: int, steps: int
) -> Times:
    """CPU seconds per step of rank 0 by contestant, one figure a round."""
    config = configuration(strategy, layers, heads, width, context, micro)
    frameworks.import_all()
    with tempfile.TemporaryDirectory() as folder:
        measured: Times = in_ranks(NUM_RANKS, folder, on_rank, config, steps, deadline_s=DEADLINE_S)
    return measured


def configuration(
    strategy: str, layers: int, heads: int, width: int, context: int, micro: int
) -> dict[str, Any]:
    """A trainer.json whose run never ends by itself and writes no checkpoint."""
    golden = Path(__file__).parent.parent / "tests/golden/files/hello.local.trainer.json"
    config: dict[str, Any] = copy.deepcopy(json.loads(golden.read_text("utf-8")))
    config["num_ranks"] = config["ranks_per_node"] = NUM_RANKS
    config["model"] |= {"layers": layers, "heads": heads, "width": width, "context": context}
    config["batch"] = {"micro": micro, "accumulation": 1}
    config["data"]["samples"] = 4096
    config["steps"] = 10**6
    config["checkpoint"]["every_steps"] = 10**6
    config["parallelism"]["strategy"] = strategy
    return config


class Ours:
    """The trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def advance(self, steps: int) -> None:
        """Do this many steps."""
        for _ in range(steps):
            self.trainer.advance()


def on_rank(raw: dict[str, Any], steps: int) -> Times:
    """What the contestants took on this rank."""
    config, contract = parse_config(raw, "benchmark"), Contract.from_environ()
    contract.attempt_dir.mkdir(parents=True, exist_ok=True)
    with process_group(config, contract) as store:
        device = torch.device("cpu")
        trainer = Trainer(config, contract, StopProtocol(store, Path("none"), device), device)
        setting = bare.Setting(config, trainer.corpus, contract.rank, NUM_RANKS)
        makers: dict[str, Callable[[bare.Setting], Contestant]] = {"bare torch": bare.Bare}
        if raw["parallelism"]["strategy"] == "ddp":
            makers |= frameworks.available()
        contestants: dict[str, Contestant] = {"trainer": Ours(trainer)}
        contestants |= {name: make(setting) for name, make in makers.items()}
        return take_turns(contestants, steps)


def take_turns(contestants: dict[str, Contestant], steps: int) -> Times:
    """CPU seconds per step, in blocks of `steps`, in an order that is alike on all ranks."""
    times: Times = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant.advance(NUM_DROPPED)
    chance = random.Random(1)
    names: Sequence[str] = list(contestants)
    for _ in range(ROUNDS):
        for name in chance.sample(names, len(names)):
            began = time.process_time()
            contestants[name].advance(steps)
            times[name].append((time.process_time() - began) / steps)
    return times


if __name__ == "__main__":
    print("\n".join(rows()))
