"""How many pods a run has, and with how few it trains: by its object, and by what its pods were
told. The object alone does not say it: only a PyTorchJob has a field for the fewest."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.backends.kubernetes_kinds import Object, Target


def num_nodes(target: Target, live: Object, pods: Sequence[Object]) -> int | None:
    """How many pods the run has at most; None where neither its object nor a pod says it."""
    spec = live.get("spec", {})
    if target.name == "job":
        return int(spec.get("completions") or spec.get("parallelism") or 1)
    if target.name == "jobset":
        return sum(_pods_of(job) for job in spec.get("replicatedJobs") or ()) or None
    if target.name == "pytorchjob":
        parts = (spec.get("pytorchReplicaSpecs") or {}).values()
        return sum(int(part.get("replicas") or 1) for part in parts) or None
    return max(_told(target, pods, "--nnodes"), default=None)  # a TrainJob leaves it to its runtime


def _pods_of(job: Object) -> int:
    """How many pods a replicated job of a JobSet has."""
    completions = job.get("template", {}).get("spec", {}).get("completions")
    return int(job.get("replicas") or 1) * int(completions or 1)


def least_nodes(target: Target, pods: Sequence[Object]) -> int | None:
    """The fewest pods with which an elastic run trains; None for any other."""
    return min(_told(target, pods, "--sizes"), default=None)


def _told(target: Target, pods: Sequence[Object], option: str) -> list[int]:
    """The numbers that node.py was given by an option, in the first pod that has it."""
    for words in map(target.launcher_words, pods):
        if option in words[:-1]:
            value = words[words.index(option) + 1]
            return [int(number) for number in value.split(",") if number.isdecimal()]
    return []
