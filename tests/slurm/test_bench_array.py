"""A bench as one array of a real Slurm, with real training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import orchestrate
from running import read
from slurm.cluster import Cluster

pytest.importorskip("torch")

JOB = """\
name: small
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 8
"""


def test_cells_are_elements_of_one_array(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environ[name])
    job, clusters = tmp_path / "job.yaml", tmp_path / "clusters.yaml"
    job.write_text(JOB)
    runs = tmp_path / "runs"
    profile = {"target": "slurm", "runs_root": str(runs), "slurm": {"python": sys.executable}}
    clusters.write_text(json.dumps({"clusters": {"dev": profile}}))
    words = ["bench", str(job), "--cluster", "dev", "--clusters", str(clusters), "--steps", "8"]
    words += ["--array", "--micro-batch", "2,4", "--json"]

    result = CliRunner().invoke(orchestrate, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["run"] for row in rows] == ["small-n1/0", "small-n1/1"]
    for row in rows:
        assert row["state"] == "DONE", row["reason"]
        assert row["measured"]["step_s"] > 0
        assert row["measured"]["peak_bytes"] > row["planned"]["peak_bytes"]
    owners = [read(runs / row["run"] / "attempts/1/owner.json")["job"] for row in rows]
    assert len(set(owners)) == 2
    array = read(runs / "small-n1/receipt.json")
    assert array["num_elements"] == 2
