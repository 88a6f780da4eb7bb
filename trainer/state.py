"""The state of a run that a checkpoint holds: weights, optimizer, progress, random states."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer import checkpoint
from trainer.changes import FRESH, Settings
from trainer.contract import ConfigurationError
from trainer.devices import module_of
from trainer.parallelized import Parallelized

# Of the files. 1 had the optimizer by number, and the rows of attention.inward in another order.
FORMAT = 2
MODEL_FILE, OPTIMIZER_FILE, TRAINER_FILE = "model.pt", "optimizer.pt", "trainer.pt"


@dataclass
class Progress:
    """How far a run is: optimizer steps, samples taken by all ranks, the last validation.

    validation_loss is in nats per token, after validated_step; None if nothing was measured.
    """

    step: int = 0
    samples: int = 0
    validated_step: int = -1
    validation_loss: float | None = None
    skipped: int = 0
    skipped_in_a_row: int = 0


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds besides weights and optimizer.

    settings: as changes.settings_of made them; empty in a checkpoint from before they were saved.
    format: of the manifest, full, sharded or both.
    random_states: one per rank of the run that saved them. scaler: of fp16, as LossScaler.state()
    made it; None without.
    """

    path: Path
    progress: Progress
    settings: Settings
    random_states: list[Any]
    scaler: dict[str, Any] | None = None
    format: str = "full"


def seed_everything(seed: int) -> None:
    """Seed every generator that a model may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """All random states of this process, as tensors and plain values."""
    kind, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    # Not uint32: torch's pickles of that type cannot be read back.
    state = {
        "python": [kind, list(numbers), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state[device.type] = module_of(device).get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put back what random_state returned."""
    kind, numbers, gauss = state["python"]
    random.setstate((kind, tuple(numbers), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    words = keys.numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and device.type in state:
        module_of(device).set_rng_state(state[device.type], device)


def load(path: Path) -> Saved:
    """All of a checkpoint but weights and optimizer.

    Raises ConfigurationError for one that another version of this trainer wrote in another form.
    """
    state = checkpoint.load_part(path, TRAINER_FILE)
    found = state.get("format", 1)
    if found != FORMAT:
        raise ConfigurationError(
            f"use the version that wrote it, or {FRESH}: checkpoint {path.name} has the format"
            f" {found}, and this version reads {FORMAT}"
        )
    progress = Progress(**state["progress"])
    settings, scaler = state.get("settings", {}), state.get("scaler")
    layout = checkpoint.format_of(path)
    return Saved(path, progress, settings, state["random"], scaler, layout)


def restore(
    saved: Saved,
    parallel: Parallelized,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    seed: int,
) -> None:
    """Load a checkpoint into model, optimizer and this rank's random states.

    After a change of the world size no old random state belongs to this rank; it starts from
    `seed` and the position. Raises ConfigurationError if the checkpoint does not fit the model.
    """
    try:
        _load(saved, parallel, optimizer)
    except (
        ValueError,
        KeyError,
    ) as error:  # torch's own errors may be of the device: no fault here
        raise ConfigurationError(
            f"undo the change of train.model or of its code, or {FRESH}: checkpoint"
            f" {saved.path.name} does not fit the model ({_shortened(error)})"
        ) from error
    if parallel.scaler is not None and saved.scaler is not None:
        parallel.scaler.load(saved.scaler)
    parallel.resumed(saved.progress.step)
    states, rank = saved.random_states, dist.get_rank()
    if len(states) == dist.get_world_size():
        set_random_state(states[rank], device)
    else:
        seed_everything(seed + saved.progress.samples)


def _load(saved: Saved, parallel: Parallelized, optimizer: torch.optim.Optimizer) -> None:
    """Of both formats the sharded one, of which a rank reads its part and not the whole."""
    if saved.format == "full":
        parallel.load_weights(checkpoint.load_part(saved.path, MODEL_FILE, lazily=True))
        moments = checkpoint.load_part(saved.path, OPTIMIZER_FILE, lazily=True)
        parallel.load_moments(optimizer, moments)
    else:
        from trainer.sharded_state import load_shards  # torch's part of it takes time to import

        load_shards(saved.path, parallel, optimizer)


def _shortened(error: Exception, num_lines: int = 2, limit: int = 200) -> str:
    """The first lines of torch's words, which name every parameter."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:num_lines])
    return text if len(text) <= limit else text[:limit] + "..."
