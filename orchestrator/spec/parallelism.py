"""How the model is spread over the ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.spec.base import Part


class Ddp(Part):
    """Options of torch's DistributedDataParallel, under torch's names."""

    find_unused_parameters: bool = Field(
        default=False,
        description="Look in each step for parameters without a gradient; costs time. Not together "
        "with activation checkpointing. The same on Slurm and on Kubernetes.",
    )
    broadcast_buffers: bool | None = Field(
        default=None,
        description="Send rank 0's buffers to all ranks before each forward pass; by default only "
        "if the model has buffers. Not together with activation checkpointing. The same on Slurm "
        "and on Kubernetes.",
    )
    bucket_cap_mb: float = Field(
        default=25.0,
        gt=0,
        le=100_000,
        description="Size of a gradient bucket in MiB. The same on Slurm and on Kubernetes.",
    )
    gradient_as_bucket_view: bool = Field(
        default=True,
        description="Let gradients live in the buckets, which saves their size in memory once. The "
        "same on Slurm and on Kubernetes.",
    )
    static_graph: bool = Field(
        default=False,
        description="Promise that each step uses the same parameters. The same on Slurm and on "
        "Kubernetes.",
    )


class Parallelism(Part):
    """Strategy, number format and what is recomputed."""

    strategy: Literal["ddp"] = Field(
        default="ddp",
        description="How parameters and gradients are spread over the ranks; ddp keeps a whole "
        "copy on each. The same on Slurm and on Kubernetes.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="Number format of the computation; bf16 is autocast with parameters in fp32. "
        "The same on Slurm and on Kubernetes.",
    )
    activation_checkpointing: Literal["none", "full"] = Field(
        default="none",
        description="Recompute each block in the backward pass, which saves memory and costs about "
        "a third more time. The same on Slurm and on Kubernetes.",
    )
    ddp: Ddp = Field(default=Ddp(), description="Options of DistributedDataParallel.")
