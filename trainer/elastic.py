"""The configuration as an attempt with fewer ranks than the job asks for runs it."""

from __future__ import annotations

from dataclasses import replace

from trainer import config_faults
from trainer.config import CheckpointConfig, ParallelismConfig, TrainerConfig
from trainer.contract import ConfigurationError


def for_world(config: TrainerConfig, world_size: int) -> TrainerConfig:
    """The configuration for `world_size` ranks, with the same global batch.

    batch.accumulation grows as the ranks become fewer, so that the samples of a step stay the same.
    Raises ConfigurationError for a number of ranks with which the job does not go.
    """
    allowed = sorted({*config.world_sizes, config.num_ranks})
    if world_size not in allowed:
        raise ConfigurationError(
            f"num_ranks: the job was rendered for {_words(allowed)} ranks, but WORLD_SIZE is"
            f" {world_size}; start as many ranks, or render the job again"
        )
    if world_size == config.num_ranks:
        return config
    passes = config.batch.accumulation * config.num_ranks
    if passes % world_size:
        raise ConfigurationError(
            f"world_sizes: {world_size} ranks cannot share batch.accumulation"
            f" {config.batch.accumulation} x {config.num_ranks} ranks, so that the global batch"
            " would be another; render the job again with this version"
        )
    batch = replace(config.batch, accumulation=passes // world_size)
    adapted = replace(
        config,
        num_ranks=world_size,
        batch=batch,
        parallelism=_spread(config.parallelism, world_size),
        checkpoint=_rarer_failures(config.checkpoint, config.num_ranks / world_size),
    )
    if faults := config_faults.strategy_faults(adapted):
        head = f"world_sizes: the job does not go with {world_size} ranks"
        raise ConfigurationError("\n  ".join([head, *faults]))
    return adapted


def _spread(parallelism: ParallelismConfig, world_size: int) -> ParallelismConfig:
    """With a single group left, and no other to be a copy, hybrid_shard is full_shard."""
    if parallelism.shard_group != world_size // parallelism.tensor:
        return parallelism
    return replace(parallelism, strategy="full_shard", shard_group=None)


def _rarer_failures(checkpoint: CheckpointConfig, times: float) -> CheckpointConfig:
    """With fewer nodes one of them fails less often."""
    if checkpoint.mtbf_s is None:
        return checkpoint
    return replace(checkpoint, mtbf_s=checkpoint.mtbf_s * times)


def _words(numbers: list[int]) -> str:
    *fewer, last = map(str, numbers)
    return f"{', '.join(fewer)} or {last}" if fewer else last
