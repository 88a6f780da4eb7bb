"""What rank 0 does to save a run: publish the state as a checkpoint and remove old ones."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from trainer import checkpoint, phase
from trainer.config import TrainerConfig
from trainer.contract import Contract
from trainer.state import Progress


def save(
    parts: Mapping[str, object],
    progress: Progress,
    last_step: int,
    config: TrainerConfig,
    contract: Contract,
    broken: Collection[Path],
) -> str:
    """Publish `parts` (see state.parts), remove what need not be kept; returns the name.

    last_step: of the checkpoint before. broken: checkpoints that are known not to be whole.
    Raises what checkpoint.publish raises.
    """
    manifest = manifest_of(progress, last_step, config, contract)
    path = checkpoint.publish(manifest, parts, contract)
    phase.enter("prune", progress.step)
    try:
        if contract.is_newest_attempt():
            keep, keep_best = config.checkpoint.keep, config.checkpoint.keep_best
            checkpoint.prune(path, keep, keep_best, contract.attempt, broken)
    except OSError as error:  # nothing is lost by what stays
        print(f"trainer: old checkpoints stay: {error}", file=sys.stderr)
    return path.name


def manifest_of(
    progress: Progress, last_step: int, config: TrainerConfig, contract: Contract
) -> checkpoint.Manifest:
    """The manifest of a checkpoint of now.

    The last validation speaks for it if it was made after the checkpoint before, under
    checkpoint.every_steps that which a run without a stop would have made; but never that of the
    untrained model.
    """
    every = config.checkpoint.every_steps
    since = last_step if every is None else max(0, progress.step - every)
    measured = progress.validation_loss is not None and progress.validated_step > since
    return checkpoint.Manifest(
        step=progress.step,
        attempt=contract.attempt,
        world_size=contract.world_size,
        strategy=config.parallelism.strategy,
        validation_loss=progress.validation_loss if measured else None,
        validation_step=progress.validated_step if measured else None,
    )
