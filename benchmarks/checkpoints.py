"""How long a save keeps the training waiting, and how long loading takes, on two ranks with gloo.

`python -m benchmarks.checkpoints [FOLDER]` writes below FOLDER (a new one in /tmp), so that its
disk is what is measured. Times are those of the slower rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from benchmarks.paired import machine
from benchmarks.step import configuration
from trainer import state
from trainer.checkpoint import published
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.saver import Saver
from trainer.staging import Staging
from trainer.stop import StopProtocol

NUM_RANKS = 2
ROUNDS = 3
TIMEOUT_S = 1800
# layers, heads, width
SIZES = {"100 M": (12, 8, 832), "30 M": (8, 8, 560), "10 M": (6, 8, 384)}
STRATEGIES = ("ddp", "full_shard")
FIGURES = {
    "sharded": "sharded: at once",
    "sharded_first": "first beside",
    "sharded_beside": "later beside",
    "sharded_ratio": "beside : at once",
    "full": "full: at once",
    "full_first": "first beside",
    "full_beside": "later beside",
    "full_ratio": "beside : at once",
    "load_sharded": "load sharded",
    "load_full": "load full",
}


def rows(folder: Path) -> list[str]:
    """Measure below `folder`; the lines of a table, a row for each strategy and size."""
    head = ["strategy", "model", *FIGURES.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for size in SIZES:
        for strategy in STRATEGIES:
            times = measure(strategy, size, folder)
            cells = [_cell(name, times[name]) for name in FIGURES]
            lines.append(f"| {strategy} | {size} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def _cell(name: str, value: float) -> str:
    return f"{value:.3f}" if name.endswith("ratio") else f"{value:.2f} s"


def measure(strategy: str, size: str, folder: Path) -> dict[str, float]:
    """Medians of what FIGURES names."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    worker = [f"--nproc-per-node={NUM_RANKS}", "-m", __spec__.name, strategy, size]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        environ = {
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ORCHESTRATE_ATTEMPT": "1",
            "ORCHESTRATE_RUN_DIR": name, "ORCHESTRATE_WORKDIR": name,
            "ORCHESTRATE_CHECKPOINT_DIR": f"{name}/checkpoints",
        }  # fmt: skip
        (Path(name) / "attempts" / "1").mkdir(parents=True)
        command = [*torchrun, *worker]
        environ = {**os.environ, **environ}
        subprocess.run(command, check=True, env=environ, stdout=sys.stderr, timeout=TIMEOUT_S)
        times: dict[str, float] = json.loads((Path(name) / "times.json").read_text())
    return times


# One rank.


def rank_main(strategy: str, size: str) -> None:
    layers, heads, width = SIZES[size]
    raw = configuration(strategy, layers, heads, width, context=8, micro=1)
    config, contract = parse_config(raw, "benchmark"), Contract.from_environ()
    device = torch.device("cpu")
    with process_group(config, contract) as store:
        stop = StopProtocol(store, contract.drain_file, device)
        with contextlib.closing(Trainer(config, contract, stop, device)) as trainer:
            times = Bench(trainer).times()
        if contract.rank == 0:
            (contract.run_dir / "times.json").write_text(json.dumps(times))
        del trainer  # before its process group


class Bench:
    """Saves and loads of one trainer, each save with a Saver of its own."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.savers = {
            "sharded": self._saver("sharded", beside=False),
            "sharded_beside": self._saver("sharded", beside=True),
            "full": self._saver("full", beside=False),
            "full_beside": self._saver("full", beside=True),
        }

    def _saver(self, layout: Literal["full", "sharded"], beside: bool) -> Saver:
        trainer = self.trainer
        checkpoint = replace(
            trainer.config.checkpoint, format=layout, asynchronous=beside, keep=1, keep_best=False
        )
        config = replace(trainer.config, checkpoint=checkpoint)
        stage = Staging(
            trainer.parallel, trainer.optimizer, trainer.settings, trainer.peers, layout
        )
        return Saver(config, trainer.contract, trainer.peers, stage, trainer.metrics.event)

    def times(self) -> dict[str, float]:
        """Medians over the rounds; a step of training comes before each save, and beside some."""
        found: dict[str, list[float]] = {name: [] for name in FIGURES}
        for _ in range(ROUNDS):
            for name, saver in self.savers.items():
                self.trainer.advance()
                found[name].append(self._time(partial(self._save, saver)))
                if name.endswith("_beside"):
                    self.trainer.advance()
                    saver.finish()
                else:
                    found[f"load_{name}"].append(self._time(self._load))
        for layout in ("sharded", "full"):
            beside = found[f"{layout}_beside"]
            found[f"{layout}_first"].append(beside.pop(0))  # its memory is new
            pairs = zip(beside, found[layout][1:], strict=True)
            found[f"{layout}_ratio"] = [a / b for a, b in pairs]
        return {name: statistics.median(values) for name, values in found.items()}

    def _time(self, use: Callable[[], object]) -> float:
        """Seconds, of the slower rank."""
        dist.barrier()
        began = time.perf_counter()
        use()
        seconds = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def _save(self, saver: Saver) -> None:
        saver.save(self.trainer.progress, final=False)

    def _load(self) -> None:
        """The newest; finding it, which reads and hashes all of it, is not in the time."""
        trainer = self.trainer
        saved = state.load(published(trainer.contract.checkpoint_dir)[-1])
        state.restore(saved, trainer.parallel, trainer.optimizer, trainer.device, 1)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main(*sys.argv[1:])
    else:
        print("\n".join(rows(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp"))))
        print(f"\n{machine()}")
