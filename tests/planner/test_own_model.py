"""A user's model, looked at and then run: what its ranks send is what the planner says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from counted import count
from traffic_page import Sums, counted, predicted_sums

from orchestrator.estimate.model import inspected_path, outline_of
from orchestrator.estimate.setting import Setting
from orchestrator.plan import make_plan
from orchestrator.profiles import embedded_profiles
from orchestrator.source import parse_document
from orchestrator.spec import JobSpec, resolve_job
from ranks import run_ranks
from trainer.commands import main

pytestmark = [pytest.mark.planner, pytest.mark.timeout(300)]

JOB = """\
name: own
resources: {{nodes: 2, ranks_per_node: 2}}
train:
  model: {{factory: "models:{factory}", context: 16}}
  data: {{text: ["*.txt"]}}
  batch: {{micro: 2}}
  steps: 4
  logging: {{traffic: true, tensorboard: false}}
parallelism: {{strategy: {strategy}, precision: {precision}}}
"""


@dataclass(frozen=True)
class OwnModel:
    """A job with a model of tests/trainer/models.py."""

    factory: str
    strategy: str
    precision: str

    @property
    def spec(self) -> JobSpec:
        text = JOB.format(**vars(self))
        return resolve_job(parse_document(text.encode(), "own.yaml")).spec

    @property
    def config(self) -> dict[str, Any]:
        return make_plan(self.spec, embedded_profiles().choose("local")).trainer


CASES = [
    OwnModel(factory, strategy, precision)
    for factory in ("stack", "stack_with_frozen_block")
    for strategy in ("ddp", "full_shard", "shard_grad_op", "hybrid_shard")
    for precision in ("fp32", "bf16")
]


def look_at(cases: list[OwnModel], folder: Path) -> None:
    for factory in {case.factory for case in cases}:
        out = inspected_path(folder / f"{factory}.yaml")
        code = main(
            ["inspect", "--factory", f"models:{factory}", "--context", "16", "-o", str(out)]
        )
        assert code == 0


def said(case: OwnModel, folder: Path) -> Sums:
    outline = outline_of(case.spec, folder / f"{case.factory}.yaml")
    return predicted_sums(Setting.of(case.spec), outline)


def test_the_forecast_is_what_ranks_send(tmp_path: Path) -> None:
    run_ranks(1, look_at, CASES, tmp_path)
    events = count(CASES, tmp_path / "counted")
    wrong = [
        f"{case}: {said(case, tmp_path)} {counted(event)}"
        for case, event in events.items()
        if said(case, tmp_path) != counted(event)
    ]
    assert not wrong, "\n".join(wrong)
    assert {event["unseen"] for event in events.values()} == {0}
