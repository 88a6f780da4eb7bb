"""How the model is spread over the ranks."""

from typing import Literal

from pydantic import Field

from orchestrator.spec.base import Part, section


class Ddp(Part):
    """Options of torch's DistributedDataParallel, under torch's names."""

    find_unused_parameters: bool = Field(
        default=False,
        description="Look in each step for parameters without a gradient; costs time. Not together "
        "with activation checkpointing.",
    )
    broadcast_buffers: bool | None = Field(
        default=None,
        description="Send rank 0's buffers to all ranks before each forward pass; by default only "
        "if the model has buffers. Not together with activation checkpointing.",
    )
    bucket_cap_mb: float = Field(
        default=25.0,
        gt=0,
        le=100_000,
        description="Size of a gradient bucket in MiB.",
    )
    gradient_as_bucket_view: bool = Field(
        default=True,
        description="Let gradients live in the buckets, which saves their size in memory once.",
    )
    static_graph: bool = Field(
        default=False,
        description="Promise that each step uses the same parameters.",
    )


class Parallelism(Part):
    """Strategy, number format and what is recomputed."""

    strategy: Literal["ddp"] = Field(
        default="ddp",
        description="How parameters and gradients are spread over the ranks; ddp keeps a whole "
        "copy on each.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="Number format of the computation; bf16 is autocast with parameters in fp32.",
    )
    activation_checkpointing: Literal["none", "full"] = Field(
        default="none",
        description="Recompute each block in the backward pass, which saves memory and costs about "
        "a third more time.",
    )
    ddp: Ddp = section("Options of DistributedDataParallel.")
