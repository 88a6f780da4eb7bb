"""Runs of the trainer for tests: a configuration, a run folder, and what came out of it."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ranks import Ended, Ranks
from trainer import checkpoint, phase
from trainer.config import TrainerConfig, parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import main, process_group
from trainer.stop import StopProtocol
from trainer.writing import Draft

CONFIG: dict[str, Any] = {
    "version": 1, "name": "test", "num_ranks": 2, "world_sizes": [1, 2, 4],
    "ranks_per_node": 8, "device": "cpu", "backend": "gloo",
    "network": {"fabric": None, "promises": [], "watch": "warn", "debug": "off", "interface": None},
    "rendezvous_timeout_s": 60, "load_timeout_s": 60, "first_step_timeout_s": 60,
    "step_timeout_s": 60, "evaluation_timeout_s": None, "shutdown_timeout_s": 60,
    "model": {"layers": 2, "heads": 2, "width": 32, "context": 16, "vocab_size": None,
              "dropout": 0.0, "tied": True, "factory": None, "args": {}, "init": None},
    "data": {"kind": "text", "paths": ["*.txt"], "tokenizer": None, "dtype": "uint16",
             "ignore_token": None, "samples": None, "validation_fraction": 0.1,
             "validation_paths": [], "workers": 0},
    "optimizer": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                  "clip_norm": 1.0},
    "schedule": {"warmup_steps": 3, "kind": "cosine", "min_lr_ratio": 0.1},
    "batch": {"micro": 2, "accumulation": 1}, "steps": 6,
    "evaluation": {"every": None, "batches": None}, "seed": 7,
    "nonfinite": {"policy": "stop", "limit": 0},
    "logging": {"every": 2, "tensorboard": False, "samples": False, "traffic": False},
    "compile": False,
    "parallelism": {
        "strategy": "ddp", "shard_group": None, "tensor": 1, "precision": "fp32",
        "reductions": "fp32", "buffers": None, "activation_checkpointing": "none",
        "activation_checkpointing_every": 1, "cpu_offload": False, "gradient_sync": "last",
        "wrap": {"by": "block", "classes": [], "min_parameters": 1_000_000},
        "ddp": {"find_unused_parameters": False, "broadcast_buffers": None, "bucket_cap_mb": 0.02,
                "gradient_as_bucket_view": True, "static_graph": False, "hook": "none",
                "powersgd_rank": 1},
        "fsdp": {"version": 2, "reshard_after_forward": None, "prefetch_forward": 0,
                 "prefetch_backward": 0, "deferred_init": True},
        "check_replicas_every": None,
    },
    "checkpoint": {"every_steps": 100, "every_s": None, "mtbf_s": None, "keep": 3,
                   "keep_best": True, "format": "full", "asynchronous": False,
                   "on_failure": "stop", "timeout_s": 60, "resume": "auto"},
}  # fmt: skip

TEXT = "".join(f"{i} green bottles, hanging on the wall number {i * i}.\n" for i in range(120))


def configuration(**changes: Any) -> dict[str, Any]:
    """The test configuration with changes; `batch__micro=3` sets batch.micro."""
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        *sections, name = key.split("__")
        target = config
        for section in sections:
            target = target[section]
        if name not in target:
            raise KeyError(key)
        target[name] = value
    return config


LEARNED = ("model.pt", "optimizer.pt")
PARTS = (*LEARNED, "trainer.pt")
Listener = Callable[["Run", str, int], None]


@dataclass(frozen=True)
class Run:
    """A run folder at `root`/run with its working folder beside it."""

    root: Path

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    @property
    def checkpoint_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    def attempt_dir(self, attempt: int = 1) -> Path:
        return self.run_dir / "attempts" / str(attempt)

    def write_text(self) -> None:
        """Put the text to train on into the working folder."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        (self.workdir / "a.txt").write_text(TEXT)

    def start(
        self,
        config: Mapping[str, Any],
        attempt: int = 1,
        listener: Listener | None = None,
        world_size: int | None = None,
    ) -> list[Ended]:
        """Run one attempt on all ranks, or on world_size of them; a listener hears each change of
        phase in each rank."""
        self.claim(attempt)
        ranks = self.fork(config, attempt, listener, world_size)
        ranks.begin()
        return ranks.collect()

    def claim(self, attempt: int) -> None:
        """Make the attempt's folder, as node.py does."""
        self.attempt_dir(attempt).mkdir(parents=True)

    def fork(
        self,
        config: Mapping[str, Any],
        attempt: int,
        listener: Listener | None = None,
        world_size: int | None = None,
    ) -> Ranks:
        """The ranks of an attempt that has not begun, and is not the newest until it is claimed."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.write_text()
        config_file = self.run_dir / "trainer.json"
        config_file.write_text(json.dumps(config))
        num_ranks = world_size or config["num_ranks"]
        return Ranks(num_ranks, _rank, self, config_file, attempt, listener)

    def finish(
        self,
        config: Mapping[str, Any],
        attempt: int = 1,
        listener: Listener | None = None,
        world_size: int | None = None,
    ) -> str:
        """Run one attempt that must end well; returns the outcome."""
        ended = self.start(config, attempt, listener, world_size)
        faults = [end for end in ended if end.value != 0 or end.error or end.exit_code]
        if faults:
            raise AssertionError(f"{faults}; {self.errors(attempt)}")
        return str(self.outcome(attempt)["outcome"])

    def outcome(self, attempt: int = 1) -> dict[str, Any]:
        file = self.attempt_dir(attempt) / "outcome.json"
        content: dict[str, Any] = json.loads(file.read_text())
        return content

    def errors(self, attempt: int = 1) -> list[dict[str, Any]]:
        files = sorted((self.attempt_dir(attempt) / "errors").glob("rank-*.json"))
        return [json.loads(file.read_text()) for file in files]

    def metrics(self) -> list[dict[str, Any]]:
        """All lines; none if no attempt has come to writing one."""
        file = self.run_dir / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.metrics() if line.get("event") == name]

    def losses(self) -> dict[int, float]:
        """The loss of every step; a step that was made again must have had the same loss."""
        found: dict[int, float] = {}
        for line in self.metrics():
            if "losses" in line:
                first = line["step"] - len(line["losses"]) + 1
                for step, loss in enumerate(line["losses"], first):
                    if found.setdefault(step, loss) != loss:
                        raise AssertionError(f"step {step}: {found[step]} and then {loss}")
        return found

    def checkpoints(self) -> list[str]:
        return [path.name for path in checkpoint.published(self.checkpoint_dir)]

    def digest(self, name: str | None = None, parts: Sequence[str] = PARTS) -> str:
        """SHA-256 over parameters, optimizer state and random states of a checkpoint (newest)."""
        folder = self.checkpoint_dir / (name or self.checkpoints()[-1])
        checkpoint.verify(folder)
        return digest_of([checkpoint.load_part(folder, part) for part in parts])


def digest_of(value: Any) -> str:
    """SHA-256 over tensors and plain values, in their order."""
    digest = hashlib.sha256()
    _update(digest, value)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(repr((value.dtype, tuple(value.shape))).encode())
        digest.update(value.contiguous().numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(repr(key).encode())
            _update(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _update(digest, item)
    else:
        digest.update(repr(value).encode())


def publish(run_dir: Path, manifest: checkpoint.Manifest, parts: Mapping[str, Any]) -> Path:
    """A checkpoint of one rank in a run folder, without a training; returns its folder."""
    (run_dir / "attempts" / "1").mkdir(parents=True, exist_ok=True)
    contract = Contract(0, 0, 1, 1, run_dir, run_dir / "checkpoints", run_dir)
    contract.checkpoint_dir.mkdir(exist_ok=True)
    draft = Draft.of(contract, manifest.step, math.inf)
    draft.begin()
    draft.publish(manifest, draft.write(parts), contract)
    return draft.final


def with_trainer(run: Run, config: Mapping[str, Any], use: Callable[[Trainer], Any]) -> Any:
    """What use(trainer) returns on this rank; the text of `run` must be there."""
    return in_group(run, [config], use)[0]


def in_group(
    run: Run, configs: Sequence[Mapping[str, Any]], use: Callable[[Trainer], Any]
) -> list[Any]:
    """What use(trainer) returns on this rank for a trainer of each configuration in turn."""
    parsed = [parse_config(config, "test") for config in configs]
    _set_environ(run, attempt=1)
    contract = Contract.from_environ()
    with process_group(parsed[0], contract) as store:
        return [_use(config, contract, store, use) for config in parsed]


def _use(config: TrainerConfig, contract: Contract, store: Any, use: Callable[..., Any]) -> Any:
    stop = StopProtocol(store, contract.drain_file, torch.device("cpu"))
    with contextlib.closing(Trainer(config, contract, stop, torch.device("cpu"))) as trainer:
        return use(trainer)


def _set_environ(run: Run, attempt: int) -> None:
    os.environ.update(
        ORCHESTRATE_RUN_DIR=str(run.run_dir),
        ORCHESTRATE_ATTEMPT=str(attempt),
        ORCHESTRATE_CHECKPOINT_DIR=str(run.checkpoint_dir),
        ORCHESTRATE_WORKDIR=str(run.workdir),
    )


def _rank(run: Run, config_file: Path, attempt: int, listener: Listener | None) -> int:
    _set_environ(run, attempt)
    if listener is not None:
        phase.listeners.append(lambda name, step: listener(run, name, step))
    return main(["--config", str(config_file)])
