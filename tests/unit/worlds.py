"""A job of 2 nodes x 4 ranks, and what its options of parallelism bring: faults or trainer.json."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import Fault, FaultsError
from orchestrator.plan import LaunchPlan, make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.source import Document, parse_document
from orchestrator.spec import JobSpec, resolve_job

STRATEGIES = ("ddp", "full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "dp")

# A model with 4 heads and 4 blocks.
WORLD = """\
name: demo
resources: {nodes: 2, ranks_per_node: 4}
train:
  model: {layers: 4, heads: 4, width: 64, context: 32, dropout: 0.0}
  data: {python_docs: true}
  batch: {accumulation: 1}
  steps: 10
"""


def faults_of(options: str, *sets: str, text: str = WORLD) -> tuple[Fault, ...]:
    """What is wrong with a job and `parallelism: {options}`, with --set options."""
    text += f"parallelism: {{{options}}}\n"
    try:
        resolve_job(parse_document(text.encode(), "job.yaml"), sets=sets)
    except FaultsError as error:
        return error.faults
    return ()


def spec_of(options: str, *sets: str) -> JobSpec:
    text = f"{WORLD}parallelism: {{{options}}}\n"
    return resolve_job(parse_document(text.encode(), "job.yaml"), sets=sets).spec


def plan_of(options: str, *sets: str, cluster: str = "local") -> LaunchPlan:
    return make_plan(spec_of(options, *sets), embedded_profiles().choose(cluster))


def trainer_json(options: str, *sets: str) -> dict[str, Any]:
    return plan_of(options, *sets).trainer


def accepted(data: dict[str, Any]) -> JobSpec | None:
    """The job that is made of plain data; None if it has faults, all of them in parallelism."""
    try:
        return resolve_job(Document("f", "", data, {})).spec
    except FaultsError as error:
        for fault in error.faults:
            assert fault.message
            assert fault.key.startswith(("parallelism.", "resources.ranks_per_node"))
    return None
