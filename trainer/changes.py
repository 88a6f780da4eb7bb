"""What shapes a run, as a checkpoint records it, and what of it differs when the run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import TrainerConfig
from trainer.contract import ConfigurationError
from trainer.data import Corpus
from trainer.samples import Samples

Settings = dict[str, Any]

SPREAD_KEYS = ("strategy", "shard_group", "tensor", "precision", "reductions", "buffers")
SECTIONS = ("model", "data", "optimizer", "schedule", "batch")
# They change nothing of what is learned from a checkpoint on.
NOT_RECORDED = {"train.data.workers", "train.model.init"}

# With another of these the weights would not fit, or would mean something else.
MODEL_KEYS = {
    f"train.model.{name}"
    for name in (
        "layers", "heads", "width", "context", "vocab_size", "tied", "factory", "args",
    )
}  # fmt: skip
NUM_PROBES = 64  # samples that stand for the contents of the data
FRESH = "start anew with 'orchestrate submit --fresh'"


@dataclass(frozen=True)
class Change:
    """A setting (a key of the job file where it has one) that differs from the checkpoint's."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key} was {json.dumps(self.old)} and is {json.dumps(self.new)}"


def settings_of(config: TrainerConfig, corpus: Corpus) -> Settings:
    """Plain values by key: all that decides what is learned, and what stands for the data."""
    sections: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    settings: Settings = {
        f"train.{section}.{name}": value
        for section in SECTIONS
        for name, value in sections[section].items()
    }
    settings |= {f"parallelism.{name}": sections["parallelism"][name] for name in SPREAD_KEYS}
    settings |= {
        "parallelism.ddp.hook": config.parallelism.ddp.hook,
        "parallelism.ddp.powersgd_rank": config.parallelism.ddp.powersgd_rank,
        "parallelism.fsdp.version": config.parallelism.fsdp.version,
        "train.model.vocab_size": corpus.vocab_size,
        "train.steps": config.steps,
        "train.seed": config.seed,
        "number of ranks": config.num_ranks,
        "contents of train.data": fingerprint(corpus.train),
    }
    return {key: value for key, value in settings.items() if key not in NOT_RECORDED}


def fingerprint(samples: Samples) -> str:
    """The number of samples, and a hash of some that lie evenly between the first and the last."""
    probes = np.unique(np.linspace(0, len(samples) - 1, NUM_PROBES).astype(np.int64))
    digest = hashlib.sha256(samples[probes].numpy().tobytes()).hexdigest()
    return f"{len(samples)} windows, sha256 {digest[:16]} of {len(probes)}"


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs; a key that only one side knows is of another version and does not count."""
    return [Change(k, old[k], new[k]) for k in new if k in old and old[k] != new[k]]


def refuse(checkpoint: Path, changes: Sequence[Change], step: int, steps: int) -> None:
    """Raise ConfigurationError if the job cannot go on from a checkpoint with `step` steps done.

    That is so for another model, and for a job of fewer `steps`.
    """
    of_model = [change for change in changes if change.key in MODEL_KEYS]
    if of_model:
        raise ConfigurationError(
            f"undo the change of the model, or {FRESH}: since checkpoint {checkpoint.name} "
            + "; ".join(map(str, of_model))
        )
    if steps < step:
        raise ConfigurationError(
            f"set train.steps to {step} or more, or {FRESH}: checkpoint {checkpoint.name} has"
            f" {step} steps done, and train.steps is {steps}"
        )
