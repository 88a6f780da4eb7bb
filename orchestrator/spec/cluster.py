"""The parts of the job file that the cluster sees: resources, network, time limits, attempts."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from orchestrator.spec.base import Duration, OrMap, Part, Size, Text, TypeWords
from orchestrator.spec.environment import Environment

# IFNAMSIZ of Linux's net/if.h is 16 with the closing NUL. Of what dev_valid_name() in its
# net/core/dev.c allows this takes what sites use; a colon stands before an alias alone (eth0:1).
Interface = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9._@-]*(:[A-Za-z0-9._-]+)?$", max_length=15),
    TypeWords("name of a network interface"),
]


MAX_NODES = 10_000
Count = Annotated[int, Field(ge=1, le=MAX_NODES)]


class NodeRange(Part):
    """From how many to how many nodes an attempt may have."""

    min: Count = Field(
        description="Fewest nodes with which an attempt starts. Slurm: --nodes=MIN-MAX; "
        "Kubernetes: MAX pods, of which an attempt takes those that are there.",
    )
    max: Count = Field(
        description="Most nodes; train.batch and parallelism are given for this number.",
    )


def _nodes(value: object) -> object:
    """One number or a range: a fault is told in terms of the one that was meant."""
    if isinstance(value, dict):
        return NodeRange.model_validate(value)
    if isinstance(value, bool) or not isinstance(value, (int, NodeRange)):
        raise PydanticKnownError("int_type")
    if isinstance(value, int) and value < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    if isinstance(value, int) and value > MAX_NODES:
        raise PydanticKnownError("less_than_equal", {"le": MAX_NODES})
    return value


Nodes = Annotated[
    Count | NodeRange,
    BeforeValidator(_nodes),
    TypeWords(f"whole number from 1 to {MAX_NODES} (or a range, as {{min: 1, max: 2}})"),
    OrMap(NodeRange),
]


class Resources(Part):
    """What the job needs on each node."""

    nodes: Nodes = Field(
        default=1,
        description="Number of nodes. With a range each attempt takes as many as there are, and "
        "keeps the global batch. Slurm: --nodes; Kubernetes: number of pods; on this machine: "
        "simulated nodes with a loopback address each.",
    )
    gpus_per_node: int = Field(
        default=0,
        ge=0,
        le=128,
        description="GPUs on each node; 0 trains on the CPU. Slurm: --gpus-per-node; Kubernetes: "
        "the GPU resource's limit of each pod.",
    )
    ranks_per_node: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Training processes on each node; by default one for each GPU, or one without "
        "GPUs. Slurm and Kubernetes: torchrun --nproc-per-node.",
    )
    cpus_per_rank: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="CPU cores for each rank. Slurm: --cpus-per-task, times the ranks of a node; "
        "Kubernetes: the pod's cpu request; everywhere: OMP_NUM_THREADS.",
    )
    memory: Size | None = Field(
        default=None,
        description="Memory of each node, with its unit; by default what the site gives. Slurm: "
        "--mem; Kubernetes: the pod's memory request and limit; this machine: no limit.",
    )
    time_limit: Duration | None = Field(
        default=None,
        description="Longest time that one attempt may run; by default what the site gives. Slurm: "
        "--time; Kubernetes: the attempt saves a checkpoint and leaves in time, "
        "timeouts.shutdown and 30 s before; activeDeadlineSeconds of the pod timeouts.start and a "
        "minute after; this machine: no limit.",
    )
    gpu_type: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="Kind of GPU as the site calls it. Slurm: in --gpus-per-node; Kubernetes: "
        "node selector, by the label kubernetes.gpu_type_label.",
    )

    @property
    def max_nodes(self) -> int:
        """Nodes that the job asks for, the most where it gives a range."""
        return self.nodes if isinstance(self.nodes, int) else self.nodes.max

    @property
    def num_ranks_per_node(self) -> int:
        """Training processes on each node, with the default filled in."""
        return self.ranks_per_node or self.gpus_per_node or 1


class Network(Part):
    """How the ranks talk to one another."""

    backend: Literal["auto", "gloo", "nccl", "xccl", "hccl", "cncl", "cpu:gloo,cuda:nccl"] = Field(
        default="auto",
        description="Backend of torch.distributed; auto is nccl with GPUs and gloo without. xccl "
        "(Intel), hccl (Ascend) and cncl (Cambricon) were not tried on their hardware.",
    )
    fabric: Text | None = Field(
        default=None,
        description="Preset of the network between nodes (orchestrate fabric list), or the path of "
        "a site's own with a / in it, relative to the file that names it; usually the cluster "
        "profile's. Its variables are weaker than network.env and env. Slurm: exported inside the "
        "script; Kubernetes: env of the container, and what the pods need for it.",
    )
    watch: Literal["off", "warn", "stop"] = Field(
        default="warn",
        description="After the first step the transports that the library reports are compared "
        "with what the fabric promises: off; warn; stop the attempt as a failure.",
    )
    debug: Literal["off", "warn", "trace"] = Field(
        default="off",
        description="Messages of the communication library and torch's flight recorder in the "
        "attempt's folder: off; warn: its warnings; trace: all of it, bounded in size.",
    )
    address_family: Literal["auto", "ipv4", "ipv6"] = Field(
        default="auto",
        description="Addresses by which the nodes meet and the ranks talk. Slurm: of what a "
        "node's name resolves to; Kubernetes: of the pod's addresses.",
    )
    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{1,63}$")] | None = Field(
        default=None,
        description="What to add to a node's name for its address in the fast network, such as "
        "-ib. Slurm: the names of the allocation; Kubernetes: not used.",
    )
    shared_gpus: bool = Field(
        default=False,
        description="Allow ranks on slices (MIG) of one GPU, which nccl does not support.",
    )
    interface: Interface | None = Field(
        default=None,
        description="Network interface that the ranks use, by its exact name; by default the one "
        "that leads to the first node. Slurm and Kubernetes: the address at which the nodes meet, "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.",
    )
    env: Environment = Field(
        default_factory=dict,
        description="Environment variables for the communication libraries, such as NCCL_DEBUG. "
        "Slurm: exported inside the script; Kubernetes: env of the container.",
    )


class Attempts(Part):
    """How often the job is started again, and until when."""

    failures: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="New attempts after a crash or a hang; 0 for none. Slurm: requeues by the "
        "batch script; Kubernetes: counted in the run folder at each start; with requeues the "
        "backoffLimit or maxRestarts.",
    )
    requeues: int = Field(
        default=1000,
        ge=0,
        le=100_000,
        description="New attempts after preemption or a time limit, from the last checkpoint. "
        "Slurm: requeues by the batch script; Kubernetes: counted in the run folder at each start.",
    )
    deadline: Duration | None = Field(
        default=None,
        description="No new attempt this long after the first one began; by default no deadline. "
        "Slurm: checked by the batch script; Kubernetes: checked at each start; with "
        "resources.time_limit also activeDeadlineSeconds of the object.",
    )
