"""How the model is spread over the ranks."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from orchestrator.errors import quoted
from orchestrator.spec.base import Part, Problem, TypeWords, as_tuple, problems_error, section

Format = Literal["fp32", "bf16", "fp16"]
"""A number format: torch.float32, torch.bfloat16 or torch.float16."""


def _reshard(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, int) and value > 1):
        return value
    message = "true, false or a number of ranks from 2 belongs here"
    raise problems_error([Problem((), message, "write true, false, or a number such as 8")])


# torch's fully_shard takes the same three kinds for its reshard_after_forward.
Reshard = Annotated[
    bool | int,
    BeforeValidator(_reshard),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 2}]}),
    TypeWords("true, false or a number of ranks from 2"),
]


def _class_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    last = name.rpartition(".")[2]
    fix = f"write {last}" if last.isidentifier() and last.isascii() else ""
    raise problems_error([Problem((), f"{quoted(name)} is not the name of a class alone", fix)])


ClassNames = Annotated[
    tuple[Annotated[str, AfterValidator(_class_name)], ...],
    BeforeValidator(as_tuple),
    TypeWords("list of names of classes"),
]


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
    hook: Literal["none", "fp16", "bf16", "powersgd"] = Field(
        default="none",
        description="How gradients are made smaller on the wire: half the bytes (fp16; bf16, on "
        "nccl only), or low-rank factors (powersgd), which changes the training.",
    )
    powersgd_rank: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Rank of PowerSGD's factors: higher is closer to the gradient, and more bytes.",
    )


class Fsdp(Part):
    """Options of torch's fully_shard (version 2) or FullyShardedDataParallel (version 1)."""

    version: Literal[2, 1] = Field(
        default=2,
        description="2 is fully_shard; 1 is the class FullyShardedDataParallel, for those who "
        "compare or depend on it.",
    )
    reshard_after_forward: Reshard | None = Field(
        default=None,
        description="Drop the gathered parameters after the forward pass; a number keeps them "
        "spread over that many ranks; by default what the strategy says.",
    )
    prefetch_forward: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Units whose parameters are gathered ahead in the forward pass; 0 leaves it to "
        "torch.",
    )
    prefetch_backward: int = Field(
        default=0,
        ge=0,
        le=100,
        description="The same in the backward pass.",
    )
    deferred_init: bool = Field(
        default=True,
        description="Build the model without memory, shard it, and only then fill it with rank 0's "
        "values, so that a model larger than one rank's memory starts. It does nothing with "
        "fsdp.version: 1, which builds the whole model on each rank.",
    )
    across_nodes: bool = Field(
        default=False,
        description="Let a group of hybrid_shard cross nodes; all its traffic then goes over the "
        "network between them.",
    )


class Wrap(Part):
    """Which modules are sharded one by one; the rest of the model is one more unit."""

    by: Literal["block", "class", "size"] = Field(
        default="block",
        description="block: each transformer block; class: each module of the classes named; size: "
        "by number of parameters.",
    )
    classes: ClassNames = Field(
        default=(),
        description="Names of classes, without their modules, for by: class.",
    )
    min_parameters: int = Field(
        default=1_000_000,
        ge=1,
        le=10**15,
        description="Least number of parameters in one unit, for by: size.",
    )


class Parallelism(Part):
    """Strategy, number formats, what is recomputed, and what goes to the CPU."""

    strategy: Literal[
        "ddp", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "dp", "auto"
    ] = Field(
        default="ddp",
        description="How parameters, gradients and optimizer state are spread over the ranks: "
        "a whole copy on each (ddp, no_shard), all sharded (full_shard), parameters whole from "
        "forward to backward (shard_grad_op), sharded in groups that are copies of one another "
        "(hybrid_shard), or one process for all GPUs of a node (dp, for prototypes). auto: what "
        "`orchestrate plan` advises, with all that is not written here chosen too.",
    )
    shard_group: int | None = Field(
        default=None,
        ge=2,
        le=1_000_000,
        description="Ranks that share one copy under hybrid_shard; by default those of a node, "
        "divided by tensor.",
    )
    tensor: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Ranks of a node that split each block between them (tensor parallelism); for "
        "the bundled GPT and the sharding strategies.",
    )
    precision: Format = Field(
        default="fp32",
        description="Number format of the computation; parameters and optimizer state stay in "
        "fp32. ddp: autocast; sharded: the gathered parameters. fp16 has a gradient scaler.",
    )
    reductions: Format = Field(
        default="fp32",
        description="Number format in which sharded gradients are summed over ranks.",
    )
    buffers: Format | None = Field(
        default=None,
        description="Number format of the buffers of a sharded model; by default their own.",
    )
    activation_checkpointing: Literal["none", "full", "selective"] = Field(
        default="none",
        description="What the backward pass computes again, to save memory: whole blocks (full; "
        "about a third more time), or all but matrix products and attention (selective).",
    )
    activation_checkpointing_every: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Do so in every k-th block only.",
    )
    cpu_offload: bool = Field(
        default=False,
        description="Keep sharded parameters, gradients and optimizer state in the CPU's memory.",
    )
    gradient_sync: Literal["last", "each"] = Field(
        default="last",
        description="Sum gradients over ranks with the last micro-batch of a step, or with each: "
        "more traffic, but sharded gradients need less memory. The same with accumulation 1.",
    )
    wrap: Wrap = section("Which modules are sharded one by one.")
    ddp: Ddp = section("Options of DistributedDataParallel.")
    fsdp: Fsdp = section("Options of fully_shard and FullyShardedDataParallel.")
    check_replicas_every: int | None = Field(
        default=None,
        ge=1,
        le=10**9,
        description="Steps between comparisons of the copies' parameters; by default none.",
    )

    @property
    def shards(self) -> bool:
        """Whether parameters, gradients and optimizer state are spread over ranks."""
        return self.strategy in ("full_shard", "shard_grad_op", "hybrid_shard")

    @property
    def uses_fsdp(self) -> bool:
        """Whether torch's FSDP wraps the model; its NO_SHARD is there in version 1 alone."""
        return self.shards or (self.strategy == "no_shard" and self.fsdp.version == 1)

    @property
    def uses_ddp(self) -> bool:
        """Whether DistributedDataParallel wraps the model."""
        return self.strategy != "dp" and not self.uses_fsdp

    def group(self, ranks_per_node: int) -> int | None:
        """Return the ranks that share one copy under hybrid_shard, default filled in; else None."""
        if self.strategy != "hybrid_shard":
            return None
        return self.shard_group or ranks_per_node // self.tensor
