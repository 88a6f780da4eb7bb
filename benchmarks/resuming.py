"""How long a rank takes to continue from a checkpoint, against the size of the model.

The files were just written, so that they are read from memory and not from a disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import torch
import torch.distributed.checkpoint  # a second that no size changes

from benchmarks.forked import in_ranks
from benchmarks.step import configuration
from trainer import finding, state
from trainer.config import parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.stop import StopProtocol

NUM_RANKS = 2
DEADLINE_S = 900
# name: layers, heads, width
SIZES = {
    "1 M": (4, 8, 144),
    "10 M": (6, 8, 376),
    "50 M": (12, 8, 592),
    "100 M": (12, 8, 832),
}
CONTEXT = 32


def timed(module: ModuleType, name: str) -> list[float]:
    """Seconds that the calls of a function of the module take from now on."""
    act, spent = getattr(module, name), [0.0]

    def measured(*args: object) -> object:
        began = perf_counter()
        result = act(*args)
        spent[0] += perf_counter() - began
        return result

    setattr(module, name, measured)
    return spent


def table() -> Iterator[str]:
    """A line for each size."""
    yield "| parameters | strategy, format | bytes | find and verify | load |"
    yield "|---|---|---|---|---|"
    for name, size in SIZES.items():
        for strategy, layout in (("ddp", "full"), ("full_shard", "sharded")):
            size_bytes, find_s, load_s = measure(strategy, layout, *size)
            yield (
                f"| {name} | {strategy}, {layout} | {size_bytes / 1e6:.0f} MB"
                f" | {find_s:.2f} s | {load_s:.2f} s |"
            )


def measure(
    strategy: str, layout: str, layers: int, heads: int, width: int
) -> tuple[int, float, float]:
    """Bytes of a checkpoint of the model, and rank 0's seconds to verify and to load it."""
    config = configuration(strategy, layers, heads, width, CONTEXT, 1)
    config["steps"] = 1
    config["evaluation"]["batches"] = 1
    config["checkpoint"] |= {"every_steps": 1, "format": layout}
    with tempfile.TemporaryDirectory(prefix="resuming-") as folder:
        attempts = partial(in_ranks, NUM_RANKS, folder, on_rank, deadline_s=DEADLINE_S)
        attempts(config, 1, attempt=1)
        (published,) = Path(folder, "run/checkpoints").glob("step-*")
        size_bytes = sum(file.stat().st_size for file in published.iterdir())
        find_s, load_s = attempts(config | {"steps": 2}, 2, attempt=2)
    return size_bytes, find_s, load_s


def on_rank(raw: dict[str, Any], attempt: int) -> tuple[float, float]:
    """Seconds in which this rank found and loaded the newest checkpoint."""
    config, contract = parse_config(raw, "benchmark"), Contract.from_environ()
    contract.attempt_dir.mkdir(parents=True, exist_ok=True)
    with process_group(config, contract) as store:
        device = torch.device("cpu")
        found, loaded = timed(finding, "newest_whole"), timed(state, "restore")
        trainer = Trainer(config, contract, StopProtocol(store, Path("none"), device), device)
        if attempt == 1:
            trainer.run()
        trainer.close()
        return found[0], loaded[0]
