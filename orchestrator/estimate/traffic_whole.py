"""Traffic of strategies with a whole copy on each rank: DistributedDataParallel, and FSDP1's
NO_SHARD."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.estimate.figures import Transfer
from orchestrator.estimate.groups import everybody
from orchestrator.estimate.held import flat_length
from orchestrator.estimate.outline import Outline, Parameter, is_trained
from orchestrator.estimate.setting import ITEM_BYTES, Setting

# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, and the default of bucket_cap_mb, with which alone
# DistributedDataParallel has a small first bucket.
FIRST_BUCKET_BYTES = 2**20
DEFAULT_CAP_MB = 25.0
MIN_COMPRESSION = 2  # PowerSGDState's default of min_compression_rate
BITMAP_BYTES = 4  # of each parameter, in the reducer's map of those that were used
NARROW_HOOKS = ("fp16", "bf16")


def replicated(setting: Setting, outline: Outline) -> list[Transfer]:
    """Return the sums of gradients by DistributedDataParallel, and what goes with them."""
    ring, passes = everybody(setting), syncs(setting)
    trained = arrival(outline)
    buckets = bucket_bytes(setting, trained)
    found: list[Transfer] = []
    if setting.ddp.hook == "powersgd":
        found += _powersgd(setting, trained, len(buckets))
    else:
        share = 2 if setting.ddp.hook in NARROW_HOOKS else 1
        payload, last = sum(buckets) // share, buckets[-1] // share if buckets else 0
        found += ring.transfer(
            "all_reduce",
            "gradients",
            payload * passes,
            len(buckets) * passes,
            phase="backward",
            passes=passes,
            edge_bytes=last * passes,
        )
    if setting.ddp.find_unused_parameters and not setting.ddp.static_graph:
        bitmap = BITMAP_BYTES * len(trained)
        found += ring.transfer("all_reduce", "unused parameters", bitmap * passes, passes)
    if setting.ddp.broadcast_buffers is not False:
        sent = outline.buffer_bytes * passes
        found += ring.transfer("broadcast", "buffers", sent, passes)
    return found


def syncs(setting: Setting) -> int:
    """Return in how many micro-batches of a step gradients are summed over ranks."""
    return setting.accumulation if setting.gradient_sync == "each" else 1


def arrival(outline: Outline) -> list[Parameter]:
    """Return the trained parameters in about the order in which the backward pass makes their
    gradients: the last unit first; of the rest, the embeddings come last and are most of it."""
    backward = [*reversed(outline.units), outline.root]
    return [p for unit in backward for p in reversed(unit.parameters) if p.trainable]


def bucket_bytes(setting: Setting, parameters: Iterable[Parameter]) -> list[int]:
    """Return the sizes of DistributedDataParallel's buckets: each takes whole gradients, one after
    another, until it has reached its limit."""
    cap = int(setting.ddp.bucket_cap_mb * 2**20)
    limit = FIRST_BUCKET_BYTES if setting.ddp.bucket_cap_mb == DEFAULT_CAP_MB else cap
    buckets, filled = [], 0
    for parameter in parameters:
        filled += parameter.numel * parameter.item_bytes
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, cap
    return [*buckets, filled] if filled else buckets


def _powersgd(setting: Setting, trained: list[Parameter], buckets: int) -> Iterator[Transfer]:
    """The hook's two factors of each matrix that they make smaller, and the others as they are."""
    rank, passes = setting.ddp.powersgd_rank, syncs(setting)
    sent = sum(_powersgd_numel(parameter.shape, rank) for parameter in trained) * 4
    yield from everybody(setting).transfer(
        "all_reduce", "factors of gradients", sent * passes, 3 * buckets * passes, passes=passes
    )


def _powersgd_numel(shape: tuple[int, ...], rank: int) -> int:
    numel, rows = 1, shape[0] if shape else 1
    for size in shape:
        numel *= size
    columns = numel // rows
    factors = (rows + columns) * min(rows, columns, rank)
    return factors if factors * MIN_COMPRESSION < numel else numel


def flat_copies(setting: Setting, outline: Outline) -> list[Transfer]:
    """Return the sums of gradients by FullyShardedDataParallel with NO_SHARD, unit by unit."""
    units = [unit for unit in (*outline.units, outline.root) if is_trained(unit)]
    item, passes = ITEM_BYTES[setting.reductions], syncs(setting)
    sizes = [flat_length(setting, unit) * item for unit in units]
    return everybody(setting).transfer(
        "all_reduce",
        "gradients",
        sum(sizes) * passes,
        len(sizes) * passes,
        phase="backward",
        passes=passes,
        edge_bytes=sizes[-1] * passes if sizes else 0,
    )
