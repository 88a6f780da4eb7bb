"""What of a job matters for memory, traffic and time; a comparison varies it by replace()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.spec import JobSpec
    from orchestrator.spec.parallelism import Ddp, Fsdp, Wrap

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Setting:
    """One way to train one model on some ranks.

    Args:
        strategy: ddp, full_shard, shard_grad_op, hybrid_shard, no_shard or dp.
        shard_group: ranks that share one copy under hybrid_shard; None under other strategies.
        tensor: ranks that split each block.
        micro: sequences of a rank in one forward pass; context: tokens of one sequence.
        optimizer: adamw (what the bundled trainer has), sgd, momentum or adamw8bit.
        attention: flash (no scores are kept), or math, which torch falls back to.
        replicas: GPUs of a rank that share its micro-batch; more than one under dp only.
    """

    strategy: str
    num_nodes: int
    ranks_per_node: int
    shard_group: int | None
    tensor: int
    precision: str
    reductions: str
    micro: int
    accumulation: int
    context: int
    checkpointing: str
    checkpointing_every: int
    cpu_offload: bool
    gradient_sync: str
    steps: int
    ddp: Ddp
    fsdp: Fsdp
    wrap: Wrap
    optimizer: str = "adamw"
    attention: str = "flash"
    replicas: int = 1

    @classmethod
    def of(cls, spec: JobSpec) -> Setting:
        """Return that of a job, with the most nodes that it may have."""
        parallelism, resources, batch = spec.parallelism, spec.resources, spec.train.batch
        sizes = spec.train.model.sizes
        return cls(
            strategy=parallelism.strategy,
            num_nodes=resources.max_nodes,
            ranks_per_node=resources.num_ranks_per_node,
            shard_group=parallelism.group(resources.num_ranks_per_node),
            tensor=parallelism.tensor,
            precision=parallelism.precision,
            reductions=parallelism.reductions,
            micro=batch.micro,
            accumulation=batch.accumulation,
            context=sizes.context if sizes else spec.train.model.context or 0,
            checkpointing=parallelism.activation_checkpointing,
            checkpointing_every=parallelism.activation_checkpointing_every,
            cpu_offload=parallelism.cpu_offload,
            gradient_sync=parallelism.gradient_sync,
            steps=spec.train.steps,
            ddp=parallelism.ddp,
            fsdp=parallelism.fsdp,
            wrap=parallelism.wrap,
            replicas=(resources.gpus_per_node or 1) if parallelism.strategy == "dp" else 1,
        )

    @property
    def num_ranks(self) -> int:
        """The world size."""
        return self.num_nodes * self.ranks_per_node

    @property
    def shards(self) -> bool:
        """Whether parameters, gradients and optimizer state are spread over ranks."""
        return self.strategy in ("full_shard", "shard_grad_op", "hybrid_shard")

    @property
    def uses_fsdp(self) -> bool:
        """Whether torch's FSDP wraps the model; its NO_SHARD is there in version 1 alone."""
        return self.shards or (self.strategy == "no_shard" and self.fsdp.version == 1)

    @property
    def num_shards(self) -> int:
        """Ranks that share one copy of what tensor parallelism leaves of the model."""
        if not self.shards:
            return 1
        return self.shard_group or self.num_ranks // self.tensor

    @property
    def num_copies(self) -> int:
        """Copies of the model, the tensor groups of one copy counted once."""
        return self.num_ranks // self.tensor // self.num_shards

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in one optimizer step; a tensor group shares its samples."""
        return self.micro * self.accumulation * self.context * (self.num_ranks // self.tensor)
