"""Runs that save often, in each format, and what their checkpoints hold."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from running import wait_until
from runs import Run, configuration
from trainer import checkpoint
from trainer.shards import METADATA, Shards

RANKS, STEPS, EVERY = 2, 6, 2
FORMATS = ("full", "sharded", "both")
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "full_shard": {"parallelism__strategy": "full_shard"},
}  # fmt: skip


def job(strategy: str = "ddp", layout: str = "full", **changes: Any) -> dict[str, Any]:
    """A run with dropout, so that random states count, and all of its checkpoints."""
    given: dict[str, Any] = {
        "num_ranks": RANKS, "steps": STEPS, "model__dropout": 0.1, "checkpoint__keep": 10,
        "checkpoint__every_steps": EVERY, "checkpoint__format": layout,
        **STRATEGIES[strategy],
    }  # fmt: skip
    return configuration(**(given | changes))


def beside(strategy: str = "ddp", layout: str = "full", **changes: Any) -> dict[str, Any]:
    return job(strategy, layout, checkpoint__asynchronous=True, **changes)


def in_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def on_rank(rank: int) -> bool:
    return os.environ["RANK"] == str(rank)


def wait_for(path: Path, timeout_s: float = 60) -> None:
    """Return once the file is there; the rank ends if it never is."""
    wait_until(path.exists, str(path), timeout_s)


def contents(run: Run, name: str) -> str:
    """A hash of all that a checkpoint holds, in the form of its format."""
    folder = run.checkpoint_dir / name
    manifest = checkpoint.verify(folder)
    parts = sorted(name for name in manifest.files if name.endswith(".pt"))
    digest = hashlib.sha256(run.digest(name, parts).encode())
    if METADATA in manifest.files:
        shards = Shards(folder)
        for tensor in sorted(shards.shapes):
            digest.update(f"{tensor} {shards.shapes[tensor]}".encode())
            digest.update(shards.whole(tensor).numpy().tobytes())
    return digest.hexdigest()


def all_contents(run: Run) -> dict[int, str]:
    """The contents of each checkpoint by the steps that were done, of any attempt."""
    return {int(name[5:14]): contents(run, name) for name in run.checkpoints()}
