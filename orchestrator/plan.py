"""From what the user wrote to what will run: ranks, environment, limits, trainer.json.

Pure: no clock, no environment, no subprocess. What the cluster is comes in as a profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.spec import JobSpec
    from orchestrator.spec.model import Model
    from orchestrator.spec.slurm import Slurm
    from orchestrator.spec.train import Data


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a renderer needs, with nothing left to decide."""

    name: str
    target: str
    launcher: str
    num_nodes: int
    ranks_per_node: int
    env: tuple[tuple[str, str], ...]
    start_timeout_s: int
    shutdown_timeout_s: int
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
    trainer: dict[str, Any]

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def tasks_per_node(self) -> int:
        """Slurm tasks: one a node that starts the ranks, or one a rank."""
        return self.ranks_per_node if self.launcher == "srun" else 1

    @property
    def cpus_per_task(self) -> int:
        return self.cpus_per_rank * self.ranks_per_node // self.tasks_per_node


def make_plan(spec: JobSpec, profile: ClusterProfile) -> LaunchPlan:
    """Return the plan of `spec` on the cluster that `profile` describes.

    Raises UserError where the two do not go together.
    """
    device = "cuda" if spec.resources.gpus_per_node else "cpu"
    backend = _communication_backend(spec.network.backend, device)
    return LaunchPlan(
        name=spec.name,
        target=profile.target,
        launcher=_launcher(spec.launcher, profile),
        num_nodes=spec.resources.nodes,
        ranks_per_node=spec.resources.num_ranks_per_node,
        env=_environment(spec, profile, backend),
        start_timeout_s=spec.timeouts.start,
        shutdown_timeout_s=spec.timeouts.shutdown,
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
        trainer=_trainer_config(spec, device, backend, spec.num_ranks),
    )


def _launcher(launcher: str, profile: ClusterProfile) -> str:
    if launcher == "srun" and profile.target != "slurm":
        raise UserError(
            f"launcher: srun is Slurm's, and cluster {profile.name} has the target "
            f"{profile.target}. Leave it out here (torchrun), and write `launcher: srun` below "
            "clusters.NAME for the Slurm cluster."
        )
    return launcher


def _communication_backend(wanted: str, device: str) -> str:
    if wanted != "auto":
        return wanted
    return "nccl" if device == "cuda" else "gloo"


def _environment(
    spec: JobSpec, profile: ClusterProfile, backend: str
) -> tuple[tuple[str, str], ...]:
    """Variables of every node, sorted by name; the job's own `env` wins."""
    variables = {
        # One thread pool a rank; torch's own default, a pool over all cores, oversubscribes them.
        "OMP_NUM_THREADS": str(spec.resources.cpus_per_rank),
        "PYTHONUNBUFFERED": "1",
    }
    interface = spec.network.interface or ("lo" if profile.target == "local" else None)
    if interface is not None and backend in _INTERFACE_VARIABLES:
        variables[_INTERFACE_VARIABLES[backend]] = interface
    variables.update(spec.network.env)
    variables.update(spec.env)
    return tuple(sorted(variables.items()))


# torch.distributed documentation, "Choosing the network interface to use".
_INTERFACE_VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


def _trainer_config(spec: JobSpec, device: str, backend: str, world_size: int) -> dict[str, Any]:
    """The content of trainer.json: units resolved, nothing about the cluster."""
    train, parallelism = spec.train, spec.parallelism
    checkpoint = spec.checkpoint
    return {
        "version": 1,
        "name": spec.name,
        "num_ranks": world_size,
        "device": device,
        "backend": backend,
        "step_timeout_s": spec.timeouts.step,
        "model": _model_config(train.model),
        "data": _data_config(train.data),
        "optimizer": train.optimizer.model_dump(mode="json"),
        "schedule": train.schedule.model_dump(mode="json"),
        "batch": train.batch.model_dump(mode="json"),
        "steps": train.steps,
        "evaluation": train.evaluation.model_dump(mode="json"),
        "seed": train.seed,
        "logging": train.logging.model_dump(mode="json"),
        "compile": train.compile,
        "precision": parallelism.precision,
        "activation_checkpointing": parallelism.activation_checkpointing,
        "strategy": parallelism.strategy,
        "ddp": parallelism.ddp.model_dump(mode="json"),
        "checkpoint": {
            "every": checkpoint.every,
            "keep": checkpoint.keep,
            "keep_best": checkpoint.keep_best,
            "resume": checkpoint.resume,
        },
    }


def _model_config(model: Model) -> dict[str, Any]:
    """Sizes with the preset filled in; a factory has none of its own but the context."""
    sizes = model.sizes
    return {
        "layers": sizes.layers if sizes else 0,
        "heads": sizes.heads if sizes else 0,
        "width": sizes.width if sizes else 0,
        "context": sizes.context if sizes else model.context,
        "vocab_size": model.vocab_size,
        "dropout": model.dropout,
        "tied": model.tied,
        "factory": model.factory,
        "args": model.args,
    }


def _data_config(data: Data) -> dict[str, Any]:
    validation = data.validation
    return {
        "kind": data.kind,
        "paths": list(data.text or data.tokens or ()),
        "tokenizer": data.tokenizer,
        "dtype": data.dtype,
        "samples": data.synthetic.samples if data.synthetic else None,
        "validation_fraction": validation.fraction,
        "validation_paths": list(validation.text or validation.tokens or ()),
        "workers": data.workers,
    }
