"""Jobs of 2 nodes x 2 ranks, run on 4 gloo ranks in steps whose collectives are counted."""

from __future__ import annotations

import contextlib
import faulthandler
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from orchestrator.plan import make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.source import parse_document
from orchestrator.spec import JobSpec, resolve_job
from ranks import run_ranks
from runs import Run, in_group
from trainer.loop import Trainer

NUM_NODES, RANKS_PER_NODE = 2, 2
WORLD_TIMEOUT_S = 600
JOB = """\
name: counted
resources: {{nodes: 2, ranks_per_node: 2}}
train:
  model: {{layers: 2, heads: 2, width: {width}, context: {context}}}
  data: {{text: ["*.txt"]}}
  batch: {{micro: 2, accumulation: {accumulation}}}
  steps: 4
  logging: {{traffic: true, tensorboard: false}}
parallelism: {{{options}}}
"""

STRATEGIES = {
    "ddp": "strategy: ddp",
    "ddp, small buckets": "strategy: ddp, ddp: {bucket_cap_mb: 0.04}",
    "full_shard": "strategy: full_shard",
    "shard_grad_op": "strategy: shard_grad_op",
    "hybrid_shard": "strategy: hybrid_shard",
    "no_shard": "strategy: no_shard",
    "tensor 2": "strategy: full_shard, tensor: 2",
    "full_shard, FSDP1": "strategy: full_shard, fsdp: {version: 1}",
    "shard_grad_op, FSDP1": "strategy: shard_grad_op, fsdp: {version: 1}",
    "hybrid_shard, FSDP1": "strategy: hybrid_shard, fsdp: {version: 1}",
    "no_shard, FSDP1": "strategy: no_shard, fsdp: {version: 1}",
}


@dataclass(frozen=True)
class Case:
    """A job: the name of a strategy, and what is varied; options: more of parallelism's keys."""

    strategy: str
    precision: str = "fp32"
    accumulation: int = 1
    sync: str = "last"
    width: int = 32
    context: int = 16
    options: str = ""

    @property
    def spec(self) -> JobSpec:
        options = f"{STRATEGIES[self.strategy]}, precision: {self.precision}"
        options += f", {self.options}" if self.options else ""
        text = JOB.format(
            options=f"{options}, gradient_sync: {self.sync}",
            accumulation=self.accumulation, width=self.width, context=self.context,
        )  # fmt: skip
        return resolve_job(parse_document(text.encode(), "job.yaml")).spec

    @property
    def config(self) -> dict[str, Any]:
        """Its trainer.json."""
        return make_plan(self.spec, embedded_profiles().choose("local")).trainer


def cases_of(width: int = 32, context: int = 16) -> list[Case]:
    """Each strategy in both formats, and in fp32 with two micro-batches, summed last or each."""
    return [
        Case(strategy, precision, accumulation, sync, width, context)
        for strategy in STRATEGIES
        for precision, accumulation, sync in (
            ("fp32", 1, "last"), ("fp32", 2, "last"), ("fp32", 2, "each"), ("bf16", 1, "last")
        )
    ]  # fmt: skip


class Job(Protocol):
    """What can be counted."""

    @property
    def config(self) -> dict[str, Any]: ...


AnyJob = TypeVar("AnyJob", bound=Job)


def count(cases: Sequence[AnyJob], root: Path) -> dict[AnyJob, dict[str, Any]]:
    """The event `traffic` of each case; all of them in one world."""
    run = Run(root)
    run.write_text()
    run.run_dir.mkdir()
    configs = [case.config for case in cases]
    run_ranks(NUM_NODES * RANKS_PER_NODE, _on_rank, run, configs, timeout_s=WORLD_TIMEOUT_S)
    return dict(zip(cases, run.events("traffic"), strict=True))


def _on_rank(run: Run, configs: Sequence[dict[str, Any]]) -> None:
    faulthandler.dump_traceback_later(WORLD_TIMEOUT_S - 10)  # instead of that of ranks.py
    with contextlib.redirect_stdout(io.StringIO()):  # metrics are in their file too
        in_group(run, configs, _advance)


def _advance(trainer: Trainer) -> None:
    for _ in range(3):
        trainer.advance()
