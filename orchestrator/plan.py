"""From what the user wrote to what will run: ranks, environment, limits.

Pure: no clock, no environment, no subprocess. What the cluster is comes in as a profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.fabric_pods import with_fabric
from orchestrator.network_plan import NetworkPlan, network_plan, preset_of, variables
from orchestrator.trainer_config import trainer_config

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import JobSpec
    from orchestrator.spec.elements import Element
    from orchestrator.spec.kubernetes import Kubernetes
    from orchestrator.spec.slurm import Slurm
    from orchestrator.spec.timeouts import PhaseLimits

JOIN_GRACE_S = 10  # simulated nodes are started at the same moment


@dataclass(frozen=True)
class SweepPlan:
    """What the elements of a sweep differ in.

    Args:
        at_once: how many run at once at most; None for all.
        values: of each element, in the job file's form, by key with dots.
        trainers: trainer.json of each element.
    """

    at_once: int | None
    values: tuple[dict[str, Any], ...]
    trainers: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a renderer needs, with nothing left to decide.

    num_nodes is the most nodes of an attempt, node_sizes are all numbers that it may have.
    """

    name: str
    target: str
    launcher: str
    num_nodes: int
    node_sizes: tuple[int, ...]
    ranks_per_node: int
    env: tuple[tuple[str, str], ...]
    network: NetworkPlan
    limits: PhaseLimits
    failures: int
    requeues: int
    deadline_s: int | None
    cpus_per_rank: int
    gpus_per_node: int
    gpu_type: str | None
    memory_bytes: int | None
    time_limit_s: int | None
    after: tuple[tuple[str, str], ...]
    slurm: Slurm
    kubernetes: Kubernetes
    runs_root: str
    trainer: dict[str, Any]
    sweep: SweepPlan | None = None
    chosen: tuple[str, ...] = ()  # what strategy: auto is and why, a line each

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def interface(self) -> str | None:
        return self.network.interface

    @property
    def start_timeout_s(self) -> int:
        return self.limits.start_s

    @property
    def shutdown_timeout_s(self) -> int:
        return self.limits.shutdown_s

    @property
    def is_elastic(self) -> bool:
        """Whether an attempt may have fewer nodes than the job asks for."""
        return len(self.node_sizes) > 1

    @property
    def join_grace_s(self) -> int:
        """How long a roll call with enough nodes waits for the others."""
        return min(JOIN_GRACE_S, self.start_timeout_s)

    @property
    def nodes_words(self) -> str:
        """How many nodes, in words."""
        *fewer, most = map(str, self.node_sizes)
        return f"{', '.join(fewer)}{' or ' if fewer else ''}{most} nodes"

    @property
    def tasks_per_node(self) -> int:
        """Slurm tasks: one a node that starts the ranks, or one a rank."""
        return self.ranks_per_node if self.launcher == "srun" else 1

    @property
    def cpus_per_task(self) -> int:
        return self.cpus_per_rank * self.ranks_per_node // self.tasks_per_node


def make_plan(
    spec: JobSpec,
    profile: ClusterProfile,
    elements: Sequence[Element] = (),
    chosen: tuple[str, ...] = (),
) -> LaunchPlan:
    """Return the plan of `spec` on the cluster that `profile` describes.

    Args:
        elements: those of the job's sweep.
        chosen: what `parallelism.strategy: auto` has become and why, a line each.

    Raises UserError where they do not go together.
    """
    if "auto" in {one.parallelism.strategy for one in (spec, *(e.spec for e in elements))}:
        raise ValueError("strategy: auto is not resolved: see orchestrator.estimate.auto")
    plan = replace(_plan(spec, profile), chosen=chosen)
    if spec.sweep is None:
        return plan
    if not elements:
        raise ValueError("the elements of the sweep are not given: see ResolvedJob.elements")
    plans = [_plan(element.spec, profile) for element in elements]
    for number, other in enumerate(plans):
        _check_shape(plan, number, other)
    values = tuple(element.values for element in elements)
    sweep = SweepPlan(spec.sweep.at_once, values, tuple(other.trainer for other in plans))
    return replace(plan, sweep=sweep)


def _check_shape(plan: LaunchPlan, number: int, element: LaunchPlan) -> None:
    """Raises UserError for an element that does not fit into the script that serves all."""
    mine, other = vars(plan), vars(element)
    own = ("trainer", "chosen")
    differs = [name for name in mine if name not in own and mine[name] != other[name]]
    if differs:
        raise UserError(
            f"sweep: element {number} changes {', '.join(differs)} of the job itself, and one "
            "batch script serves all elements. Submit it as a run of its own, with --set."
        )


def _plan(spec: JobSpec, profile: ClusterProfile) -> LaunchPlan:
    preset = preset_of(spec, profile.target)
    local = profile.target == "local"
    network = network_plan(spec, preset, _interface(spec, profile), is_local=local)
    environment = {
        # One thread pool a rank; torch's own default, a pool over all cores, oversubscribes them.
        "OMP_NUM_THREADS": str(spec.resources.cpus_per_rank),
        "PYTHONUNBUFFERED": "1",
        **variables(spec, network, preset),
        **spec.env,
    }
    return LaunchPlan(
        name=spec.name,
        target=profile.target,
        launcher=_launcher(spec.launcher, profile),
        num_nodes=spec.resources.max_nodes,
        node_sizes=spec.node_sizes,
        ranks_per_node=spec.resources.num_ranks_per_node,
        env=tuple(sorted(environment.items())),
        network=network,
        limits=spec.limits,
        failures=spec.attempts.failures,
        requeues=spec.attempts.requeues,
        deadline_s=spec.attempts.deadline,
        cpus_per_rank=spec.resources.cpus_per_rank,
        gpus_per_node=spec.resources.gpus_per_node,
        gpu_type=spec.resources.gpu_type,
        memory_bytes=spec.resources.memory,
        time_limit_s=spec.resources.time_limit,
        after=tuple(sorted(spec.after.items())),
        slurm=spec.slurm,
        kubernetes=with_fabric(spec.kubernetes, network.pods),
        runs_root=profile.runs_root,
        trainer=trainer_config(spec, network, profile.mtbf_s(spec.resources.max_nodes)),
    )


def _launcher(launcher: str, profile: ClusterProfile) -> str:
    if launcher in ("srun", "submitit") and profile.target != "slurm":
        raise UserError(
            f"launcher: {launcher} is Slurm's, and cluster {profile.name} has the target "
            f"{profile.target}. Leave it out here (torchrun), and write `launcher: {launcher}` "
            "below clusters.NAME for the Slurm cluster."
        )
    if launcher == "submitit" and profile.ssh is not None:
        raise UserError(
            f"launcher: submitit submits from the machine on which it runs, and cluster "
            f"{profile.name} is behind ssh: {profile.ssh}. Run orchestrate there, or write "
            "launcher: torchrun."
        )
    return launcher


def _interface(spec: JobSpec, profile: ClusterProfile) -> str | None:
    """The interface between the ranks, None where each node finds it."""
    interface = spec.network.interface
    if profile.target == "local":
        return "lo"  # the simulated nodes have addresses of it
    nodes = spec.resources.max_nodes
    if interface is not None and interface.partition(":")[0] == "lo" and nodes > 1:
        raise UserError(
            f"network.interface: {interface} leads nowhere but to the node itself, and the run has "
            f"{nodes} nodes. Name the interface between them, or leave it out: it "
            "is then the one that leads to another node."
        )
    return interface
