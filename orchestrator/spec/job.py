"""The whole job file."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from orchestrator.errors import quoted
from orchestrator.spec.base import Part, Problem, TypeWords, problems_error, section
from orchestrator.spec.checkpoint import Checkpoint
from orchestrator.spec.cluster import Attempts, Network, Resources
from orchestrator.spec.elastic import elastic_problems, node_sizes
from orchestrator.spec.environment import Environment
from orchestrator.spec.kubernetes import Kubernetes
from orchestrator.spec.launcher import launcher_problems
from orchestrator.spec.nesting import nesting_problems
from orchestrator.spec.network import network_problems
from orchestrator.spec.parallelism import Parallelism
from orchestrator.spec.slurm import Slurm, slurm_problems
from orchestrator.spec.strategies import parallelism_problems
from orchestrator.spec.sweep import Sweep, sweep_problems
from orchestrator.spec.timeouts import PhaseLimits, Timeouts, phase_limits
from orchestrator.spec.train import Train, train_problems

NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,50}[a-z0-9])?$"
MAX_NAME = 52


def name_problem(name: str) -> Problem | None:
    """Return what is wrong with a run's name; None for a good one."""
    if re.fullmatch(NAME_PATTERN, name):
        return None
    message = (
        f"{quoted(name, 60)} is not a name: lower-case letters, digits, hyphens, a letter first, "
        f"no hyphen last, at most {MAX_NAME} characters"
    )
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:MAX_NAME].strip("-")
    return Problem((), message, f"write name: {slug}" if slug else "")


def _check_name(name: str) -> str:
    problem = name_problem(name)
    if problem is not None:
        raise problems_error([problem])
    return name


Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN}),
    TypeWords("name (lower-case letters, digits, hyphens)"),
]


AfterTarget = Annotated[
    str,
    Field(pattern=r"^([a-z]([a-z0-9-]{0,50}[a-z0-9])?|[0-9]{1,12}(_[0-9]{1,9})?)$"),
    TypeWords("name of a run or id of a job"),
]
# sbatch(1), "--dependency".
AfterKind = Literal["afterok", "afterany", "afternotok", "after"]


class JobSpec(Part):
    """A training job: all layers merged, defaults filled in, checked as far as that goes without
    a cluster. Durations are seconds, sizes are bytes."""

    name: Name = Field(
        description="Name of the run and of its folder; submitting the same name continues it. "
        "Slurm: --job-name; Kubernetes: the object's name."
    )
    resources: Resources = section("What the job needs.")
    launcher: Literal["torchrun", "srun", "submitit"] = Field(
        default="torchrun",
        description="What starts the ranks of a node: torchrun; Slurm's srun with a task for "
        "each rank; or torchrun in a job that the package submitit submits to Slurm. Kubernetes: "
        "torchrun.",
    )
    parallelism: Parallelism = section("How the model is spread over the ranks.")
    network: Network = section("How the ranks talk to one another.")
    timeouts: Timeouts = section("How long each phase of an attempt may take.")
    train: Train = Field(description="What is trained, on which data, and how.")
    checkpoint: Checkpoint = section("When the state is saved, and what is kept.")
    attempts: Attempts = section("How often the job is started again.")
    env: Environment = Field(
        default_factory=dict,
        description="Environment variables of all ranks. Slurm: exported inside the script; "
        "Kubernetes: env of the container.",
    )
    after: dict[AfterTarget, AfterKind] = Field(
        default_factory=dict,
        description="What the run waits for: a run's name or a job's id, and how that has to end "
        "(afterok, afterany, afternotok; after: begin). Slurm: --dependency; Kubernetes and "
        "this machine: refused.",
    )
    sweep: Sweep | None = Field(
        default=None,
        description="Many runs from this file, which differ in some keys. Slurm: --array; "
        "Kubernetes: refused.",
    )
    slurm: Slurm = section(
        "What the Slurm site needs; written in the cluster profile or below clusters.NAME, not at "
        "the job file's top."
    )
    kubernetes: Kubernetes = section(
        "What the Kubernetes cluster needs; written in the cluster profile or below clusters.NAME, "
        "not at the job file's top."
    )

    @property
    def num_ranks(self) -> int:
        """Training processes over all nodes, the world size; the most for a range of nodes."""
        return self.resources.max_nodes * self.resources.num_ranks_per_node

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """Numbers of nodes with which an attempt may run, the smallest first."""
        return node_sizes(self)

    @property
    def limits(self) -> PhaseLimits:
        """Seconds that each phase may take."""
        return phase_limits(self.timeouts, self.resources.max_nodes, self.resources.time_limit)

    @model_validator(mode="after")
    def _consistent(self) -> "JobSpec":
        problems = list(job_problems(self))
        if problems:
            raise problems_error(problems)
        return self


def job_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield what is wrong between keys that are right one by one, with paths from the root."""
    yield from _resource_problems(spec)
    yield from parallelism_problems(spec)
    yield from elastic_problems(spec)
    yield from launcher_problems(spec)
    yield from network_problems(spec)
    yield from nesting_problems(spec)
    yield from sweep_problems(spec)
    yield from (p.under(("train",)) for p in train_problems(spec.train))
    yield from (p.under(("slurm",)) for p in slurm_problems(spec.slurm))
    if spec.kubernetes.model_fields_set:
        from orchestrator.spec.kubernetes_problems import kubernetes_problems  # late: for few jobs

        yield from kubernetes_problems(spec)


def _resource_problems(spec: JobSpec) -> Iterator[Problem]:
    resources = spec.resources
    gpus = ("resources", "gpus_per_node")
    one_each = spec.parallelism.strategy != "dp"
    per_node = (None, resources.gpus_per_node)
    if one_each and resources.gpus_per_node and resources.ranks_per_node not in per_node:
        yield Problem(
            ("resources", "ranks_per_node"),
            f"{resources.ranks_per_node} ranks for {resources.gpus_per_node} GPUs: each GPU has "
            "exactly one rank",
            f"remove it, or write ranks_per_node: {resources.gpus_per_node}",
            involves=(gpus,),
        )
    if resources.gpu_type is not None and not resources.gpus_per_node:
        yield Problem(
            ("resources", "gpu_type"),
            "no GPUs are asked for, so their type means nothing",
            "add gpus_per_node, or remove gpu_type",
            "key",
            involves=(gpus,),
        )
