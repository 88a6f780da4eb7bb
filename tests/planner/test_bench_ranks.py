"""A small bench, with real ranks: what is measured is what was planned where it must be, and a cell
that fails is a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import orchestrate

pytestmark = pytest.mark.planner
pytest.importorskip("torch")

JOB = """\
name: small
resources: {ranks_per_node: 2}
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  batch: {micro: 2}
  steps: 8
"""
OWN = JOB.replace("{preset: nano}", '{factory: "own:build", context: 32}').replace("small", "own")
BUILD = "def build():\n    raise ValueError('no such layers')\n"


def bench(exit_code: int, *words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(orchestrate, ["bench", *words, "--steps", "8", "--json"])
    assert result.exit_code == exit_code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_cell_is_measured_and_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    (row,) = rows = bench(0, "job.yaml", "--strategies", "full_shard")
    seen, planned = row["measured"], row["planned"]
    assert (row["state"], row["reason"]) == ("DONE", "")
    assert seen["inside_bytes"] == planned["inside_bytes"] > 0
    assert seen["between_bytes"] == 0
    assert seen["low_s"] <= seen["step_s"] <= seen["high_s"]
    assert seen["peak_bytes"] > planned["peak_bytes"]
    assert seen["cpu_s"] > 0
    assert not Path("runs", row["run"], "checkpoints").exists()

    assert bench(0, "job.yaml", "--strategies", "full_shard", "--calibrate") == rows  # not again
    assert "peak: {fp32: " in Path("runs/small-bench/hardware.yaml").read_text()
    Path("own.yaml").write_text(OWN)
    Path("own.py").write_text(BUILD)
    (failed,) = bench(1, "own.yaml", "--micro-batch", "3")
    assert failed["state"] == "FAILED"
    assert "no such layers" in failed["reason"]
    assert failed["planned"]["peak_bytes"] is None
    assert len(json.loads(Path("runs/own-bench/bench.json").read_text())["rows"]) == 1
