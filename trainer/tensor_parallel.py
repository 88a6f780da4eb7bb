"""How ranks split each block of the built-in GPT between them."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from trainer.model import GPT

# Each pair of matrices needs one sum over the ranks, after the second: Shoeybi et al.,
# "Megatron-LM" (2019), section 3. A part of the first's rows is whole heads; see Attention.
PLAN: dict[str, Callable[[], ParallelStyle]] = {
    "attention.inward": ColwiseParallel,
    "attention.outward": RowwiseParallel,
    "mlp_inward": ColwiseParallel,
    "mlp_outward": RowwiseParallel,
}


def split_blocks(model: GPT, mesh: DeviceMesh) -> None:
    """Split the blocks along a mesh of one dimension; embeddings, norms and head stay whole."""
    for block in model.blocks:
        plan = {name: style() for name, style in PLAN.items()}
        # None: each rank takes its part from the values it has, if it has any yet.
        parallelize_module(block, mesh, plan, src_data_rank=None)
