"""The collectives of one optimizer step, as the bundled trainer runs them.

Checked against those that really run in tests/planner. Not counted: what does not come with each
step (evaluation, checkpoints, lines of metrics, comparison of replicas, the first two passes).
"""

from __future__ import annotations

from orchestrator.estimate.figures import Traffic, Transfer
from orchestrator.estimate.groups import everybody, tensor_group
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import ITEM_BYTES, Setting
from orchestrator.estimate.traffic_shards import sharded
from orchestrator.estimate.traffic_whole import flat_copies, replicated

NORM_BYTES = 4  # an fp32 scalar: see GradientNorm in trainer/norms.py


def traffic(setting: Setting, outline: Outline) -> Traffic:
    """Return what the ranks send one another in one step."""
    if setting.strategy == "dp":
        return Traffic(())  # one process for each node, and no group of processes
    if setting.shards:
        found = sharded(setting, outline)
    elif setting.strategy == "no_shard" and setting.fsdp.version == 1:
        found = flat_copies(setting, outline)
    else:
        return Traffic(tuple(replicated(setting, outline)))
    return Traffic((*found, *_tensor(setting, outline), *_norm(setting)))


def _norm(setting: Setting) -> list[Transfer]:
    return everybody(setting).transfer("all_reduce", "gradient norm", NORM_BYTES, 1)


def _tensor(setting: Setting, outline: Outline) -> list[Transfer]:
    """The sums of what ranks computed of a block: two in each pass, after attention and after the
    perceptron (Shoeybi et al., "Megatron-LM", 2019, section 3). What is computed again ends with
    the last tensor that the backward pass needs, before the second sum."""
    calls = (4 * outline.layers + recomputed_blocks(setting, outline)) * setting.accumulation
    bytes_each = setting.micro * setting.context * outline.width * ITEM_BYTES[setting.precision]
    what = "activations of split blocks"
    return tensor_group(setting).transfer("all_reduce", what, calls * bytes_each, calls)


def recomputed_blocks(setting: Setting, outline: Outline) -> int:
    """Return how many blocks the backward pass computes again, whole or in part."""
    if setting.checkpointing == "none":
        return 0
    return (outline.layers or len(outline.units)) // setting.checkpointing_every
