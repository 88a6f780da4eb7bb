"""What was probably meant."""

from __future__ import annotations

from collections.abc import Sequence

# Names that people know from other tools, and the key that does the same here.
ALIASES = {
    "batch_size": "train.batch.micro",
    "ddp_backend": "network.backend",
    "ddp_timeout": "timeouts.step",
    "epochs": "train.steps",
    "fp16": "parallelism.precision",
    "bf16": "parallelism.precision",
    "gpus": "resources.gpus_per_node",
    "gradient_accumulation_steps": "train.batch.accumulation",
    "gradient_checkpointing": "parallelism.activation_checkpointing",
    "gradient_clipping": "train.optimizer.clip_norm",
    "learning_rate": "train.optimizer.lr",
    "lr_scheduler_type": "train.schedule.kind",
    "max_grad_norm": "train.optimizer.clip_norm",
    "max_restarts": "attempts.failures",
    "max_steps": "train.steps",
    "mem": "resources.memory",
    "num_nodes": "resources.nodes",
    "num_workers": "train.data.workers",
    "nnodes": "resources.nodes",
    "nproc_per_node": "resources.ranks_per_node",
    "per_device_train_batch_size": "train.batch.micro",
    "retries": "attempts.failures",
    "time": "resources.time_limit",
    "torch_compile": "train.compile",
    "walltime": "resources.time_limit",
}


def did_you_mean(
    given: str, known: Sequence[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return at most `count` of the known names that are close to the given one, best first.

    Args:
        given: what the user wrote.
        known: what could be meant.
        count: how many to return at most.
        cutoff: how close they must be, from 0 (anything) to 1 (the same).
    """
    import difflib  # late: a job file without faults needs no proposals

    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower().replace("-", "_"), lower, count, cutoff)
    close = close or difflib.get_close_matches(given.lower(), lower, count, cutoff)
    return [lower[name] for name in close]


def other_place(given: str, paths: Sequence[str]) -> str | None:
    """Return the path of the key that does elsewhere what was probably meant, if there is one.

    Args:
        given: the last part of an unknown key.
        paths: all keys that there are.
    """
    name = given.lower().replace("-", "_")
    same = [path for path in paths if path.rpartition(".")[2] == name]
    if len(same) == 1:
        return same[0]
    if name.startswith("ddp_") and f"parallelism.ddp.{name[4:]}" in paths:
        return f"parallelism.ddp.{name[4:]}"
    return ALIASES.get(name)
