"""How long a save keeps the training waiting, and how long loading takes, on two ranks with gloo.

`python -m benchmarks.checkpoints [FOLDER]` writes below FOLDER (a new one in /tmp), so that its
disk is what is measured. Times are those of the slower rank.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.paired import machine
from benchmarks.step import configuration
from trainer import checkpoint
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.sharded_state import load_shards, staged
from trainer.shards import Parts, write_shards
from trainer.stop import StopProtocol

NUM_RANKS = 2
ROUNDS = 5
TIMEOUT_S = 1800
# layers, heads, width
SIZES = {"10 M": (6, 8, 384), "30 M": (8, 8, 560), "100 M": (12, 8, 832)}
STRATEGIES = ("ddp", "full_shard")
HEAD = """\
| strategy | model | {} |
|---|---|{}|"""
FIGURES = {
    "sharded_s": "sharded, at once",
    "first_aside_s": "sharded, beside, the first",
    "aside_s": "sharded, beside, later ones",
    "ratio": "beside : at once",
    "full_s": "full, at once",
    "load_sharded_s": "load sharded",
    "load_full_s": "load full",
}


def rows(folder: Path) -> list[str]:
    """Measure below `folder`; the lines of a table, a row for each strategy and size."""
    columns = FIGURES.values()
    lines = [HEAD.format(" | ".join(columns), "---|" * (len(columns) - 1) + "---")]
    for strategy in STRATEGIES:
        for size in SIZES:
            times = measure(strategy, size, folder)
            cells = [_cell(name, times[name]) for name in FIGURES]
            lines.append(f"| {strategy} | {size} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def _cell(name: str, value: float) -> str:
    return f"{value:.3f}" if name == "ratio" else f"{value:.3f} s"


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
    raw = configuration(strategy, layers, heads, width, context=32, micro=1)
    config, contract = parse_config(raw, "benchmark"), Contract.from_environ()
    device = torch.device("cpu")
    with process_group(config, contract) as store:
        stop = StopProtocol(store, contract.drain_file, device)
        bench = Bench(Trainer(config, contract, stop, device), contract.run_dir)
        times = bench.times()
        if contract.rank == 0:
            (contract.run_dir / "times.json").write_text(json.dumps(times))
        bench.trainer.close()
        del bench


class Bench:
    """Saves and loads of one trainer."""

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        self.trainer, self.folder = trainer, folder
        self.group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_S))
        self.old: Parts | None = None

    def times(self) -> dict[str, float]:
        """Medians over the rounds; a step of training comes before each save."""
        found: dict[str, list[float]] = {name: [] for name in FIGURES}
        for _ in range(ROUNDS):
            for kind, save, load in (
                ("sharded", self._save_sharded, self._load_sharded),
                ("full", self._save_full, self._load_full),
            ):
                self.trainer.advance()
                self._new_folder(kind)
                found[f"{kind}_s"].append(self._time(save))
                found[f"load_{kind}_s"].append(self._time(load))
            found["aside_s"].append(self._aside())
            found["ratio"].append(found["aside_s"][-1] / found["sharded_s"][-1])
        first, *later = found["aside_s"]
        found |= {"first_aside_s": [first], "aside_s": later, "ratio": found["ratio"][1:]}
        return {name: statistics.median(values) for name, values in found.items()}

    def _time(self, use: Callable[[], object]) -> float:
        dist.barrier()
        began = time.perf_counter()
        use()
        seconds = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def _new_folder(self, kind: str) -> None:
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder / kind, ignore_errors=True)
            (self.folder / kind).mkdir()
        dist.barrier()

    def _aside(self) -> float:
        """What a save beside the training blocks: then steps go on while a thread writes."""
        self._new_folder("aside")
        seconds = self._time(self._stage)
        target = (self.folder / "aside", self.old, self.group)
        thread = threading.Thread(target=write_shards, args=target)
        thread.start()
        self.trainer.advance()
        thread.join()
        return seconds

    def _stage(self) -> None:
        self.old = staged(self.trainer.parallel, self.trainer.optimizer, self.old)

    def _save_sharded(self) -> None:
        parts = staged(self.trainer.parallel, self.trainer.optimizer)
        write_shards(self.folder / "sharded", parts, self.group)

    def _load_sharded(self) -> None:
        load_shards(self.folder / "sharded", self.trainer.parallel, self.trainer.optimizer)

    def _save_full(self) -> None:
        first = dist.get_rank() == 0
        parallel = self.trainer.parallel
        weights, moments = parallel.weights(first), parallel.moments(self.trainer.optimizer, first)
        for name, content in (("model.pt", weights), ("optimizer.pt", moments)):
            if first:
                self._write(self.folder / "full" / name, content)

    def _write(self, path: Path, content: object) -> None:
        with path.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        checkpoint.describe(path)

    def _load_full(self) -> None:
        folder = self.folder / "full"
        parallel = self.trainer.parallel
        parallel.load_weights(checkpoint.load_part(folder, "model.pt", lazily=True))
        moments = checkpoint.load_part(folder, "optimizer.pt", lazily=True)
        parallel.load_moments(self.trainer.optimizer, moments)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main(*sys.argv[1:])
    else:
        print("\n".join(rows(Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp"))))
        print(f"\n{machine()}")
