"""Calibration finds the machine of which step times were made, and writes what a profile reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.bench.calibrate import Fit, Observation, fit
from orchestrator.cards import Link
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.hardware import Hardware, hardware_of
from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.pace import pace
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.profiles import find_profiles
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job

JOB = b"""\
name: fit
resources: {nodes: 2, ranks_per_node: 2}
train:
  model: {layers: 4, heads: 4, width: 128, context: 64, vocab_size: 4096}
  data: {python_docs: true}
  batch: {micro: 4}
  steps: 20
"""
TRUE = Hardware(
    peak={"fp32": 2e10}, utilisation={"fp32": 1.0}, memory_bandwidth=5e9,
    inside=Link("", 1e9, 2e-4, ""), between=Link("", 5e8, 5e-4, ""),
    overlap=0.0, unit_overhead_s=3e-3, scatter_rounds=2,
)  # fmt: skip
CONTEXT = 250 * 2**20
SPEC = resolve_job(parse_document(JOB, "job.yaml")).spec


def outline(layers: int) -> Outline:
    sizes = SPEC.train.model.sizes
    assert sizes is not None
    return gpt_outline(sizes._replace(layers=layers), 4096, True, 0.0)


def settings() -> Iterator[tuple[Setting, int]]:
    base = Setting.of(SPEC)
    for layers in (2, 6):
        for strategy in ("ddp", "shard_grad_op", "full_shard", "hybrid_shard"):
            group = 2 if strategy == "hybrid_shard" else None
            for micro in (2, 8):
                yield replace(base, strategy=strategy, shard_group=group, micro=micro), layers


def step_s(setting: Setting, layers: int, hardware: Hardware) -> float:
    found = pace(setting, outline(layers), traffic(setting, outline(layers)), hardware)
    assert found is not None
    return found.step_s


@pytest.fixture(scope="module")
def found() -> Fit:
    seen = []
    for setting, layers in settings():
        held = memory(setting, outline(layers)).total
        step = step_s(setting, layers, TRUE)
        seen.append(Observation(setting, outline(layers), step, held + CONTEXT, 2))
    return fit(seen)


def test_the_profile_s_lines_foretell_the_same_times(found: Fit, tmp_path: Path) -> None:
    clusters = tmp_path / "clusters.yaml"
    lines = "\n".join(f"    {line}" for line in found.yaml.splitlines())
    clusters.write_text(f"default: me\nclusters:\n  me:\n    target: local\n{lines}\n")
    profile = find_profiles(str(clusters), {}, tmp_path).choose(None)
    hardware = hardware_of(SPEC, profile)
    assert hardware.context_bytes == CONTEXT
    for setting, layers in settings():
        expected = step_s(setting, layers, TRUE)
        assert step_s(setting, layers, hardware) == pytest.approx(expected, rel=0.02), setting


def test_errors_are_those_of_the_runs(found: Fit) -> None:
    assert len(found.errors) == 16
    assert max(map(abs, found.errors)) < 0.02


def test_what_the_runs_do_not_show_takes_no_time() -> None:
    setting = replace(Setting.of(SPEC), num_nodes=1, ranks_per_node=1)
    alone = fit([Observation(setting, outline(2), 1.0)])
    assert "between" not in alone.yaml
    assert "context: 1MiB" in alone.yaml
    assert alone.errors == pytest.approx((0.0,), abs=0.01)


def fitted(hardware: Hardware) -> Fit:
    seen = [
        Observation(one, outline(layers), step_s(one, layers, hardware), None, 2)
        for one, layers in settings()
    ]
    return fit(seen)


def test_a_bandwidth_that_the_runs_do_not_show_is_not_in_the_profile() -> None:
    assert "memory_bandwidth" in fitted(TRUE).yaml
    slow = replace(TRUE, peak={"fp32": 1e9}, memory_bandwidth=None)
    assert "memory_bandwidth" not in fitted(slow).yaml


def test_of_two_parts_that_grow_together_none_is_left_without_time() -> None:
    one = replace(Setting.of(SPEC), strategy="full_shard", shard_group=None)
    seen = [
        Observation(each, outline(4), step_s(each, 4, TRUE), None, 2)
        for each in (one, replace(one, micro=8), replace(one, strategy="ddp"))
    ]
    found = fit(seen)
    assert found.seconds["unit"] > 1e-4
    assert found.seconds["between message"] > 1e-5
    assert found.seconds["between byte"] > 1e-10


def test_simulated_nodes_have_one_link() -> None:
    one = replace(TRUE, between=TRUE.inside)
    seen = [
        Observation(each, outline(layers), step_s(each, layers, one), None, 2)
        for each, layers in settings()
    ]
    found = fit(seen, one_link=True).seconds
    assert found["between byte"] == found["inside byte"]
    assert found["between message"] == found["inside message"]
    assert fit(seen).seconds["between byte"] != found["between byte"]
