"""The state of a run that a checkpoint holds: weights, optimizer, progress, random states."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from trainer import checkpoint
from trainer.contract import ConfigurationError

MODEL_FILE, OPTIMIZER_FILE, TRAINER_FILE = "model.pt", "optimizer.pt", "trainer.pt"


@dataclass
class Progress:
    """How far a run is: optimizer steps, samples taken by all ranks, last step validated."""

    step: int = 0
    samples: int = 0
    validated_step: int = -1


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
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put back what random_state returned."""
    kind, numbers, gauss = state["python"]
    random.setstate((kind, tuple(numbers), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    words = keys.numpy().astype(np.uint32)
    np.random.set_state(("MT19937", words, position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def gather(item: object) -> list[Any] | None:
    """The items of all ranks in their order, on rank 0; None on the others."""
    items: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(item, items)
    return items


def find_newest(folder: Path) -> tuple[Path | None, list[checkpoint.BrokenCheckpoint]]:
    """The newest whole checkpoint, the same on all ranks; the broken ones after it, on rank 0."""
    choice: list[Any] = [None]
    broken: list[checkpoint.BrokenCheckpoint] = []
    if dist.get_rank() == 0:
        path, broken = checkpoint.newest_whole(folder)
        choice = [path.name if path is not None else None]
    dist.broadcast_object_list(choice)
    return (None if choice[0] is None else folder / choice[0]), broken


def parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, random_states: list[Any]
) -> dict[str, object]:
    """What to write to a checkpoint, by file name; random_states has one entry per rank."""
    return {
        MODEL_FILE: model.state_dict(),
        OPTIMIZER_FILE: optimizer.state_dict(),
        TRAINER_FILE: {"progress": asdict(progress), "random": random_states},
    }


def restore(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, seed: int
) -> Progress:
    """Load a checkpoint into model, optimizer and this rank's random states.

    After a change of the world size no old random state belongs to this rank; it starts from
    `seed` and the position. Raises ConfigurationError if the checkpoint does not fit the model.
    """
    state = checkpoint.load_part(path, TRAINER_FILE)
    progress = Progress(**state["progress"])
    try:
        model.load_state_dict(checkpoint.load_part(path, MODEL_FILE))
        optimizer.load_state_dict(checkpoint.load_part(path, OPTIMIZER_FILE))
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"checkpoint {path} does not fit the model: {error}. Undo the change of train.model,"
            " or start anew with 'orchestrate submit --fresh'"
        ) from error
    states, rank = state["random"], dist.get_rank()
    if len(states) == dist.get_world_size():
        set_random_state(states[rank], device)
    else:
        seed_everything(seed + progress.samples)
    return progress
