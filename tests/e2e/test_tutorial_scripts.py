"""The scripts of the tutorial are run: the two train the same, and the third goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from running import Nodes, read, wait_until

pytestmark = pytest.mark.planner
# Seen on 1, 2 and 4 ranks: 3e-7 in the loss of three epochs, 2e-6 in the weights.
RELATIVE, ABSOLUTE = 2e-6, 2e-5
STEPS, PATIENCE_S = 128, 120.0


def run(folder: Path, *command: str) -> list[float]:
    """The losses that a script prints for each epoch, learned and judged."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command, "--in-order", "--epochs", "2", "--save", "model.pt"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^epoch \d+ loss (\S+) validation (\S+)$", done.stdout, re.MULTILINE)
    assert len(lines) == 2, done.stdout  # of one rank alone
    return [float(number) for line in lines for number in line]


def test_two_ranks_train_as_one_process_does(root: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = run(tmp_path / "one", str(root / "examples/single_gpu.py"))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    two = run(tmp_path / "two", *torchrun, str(root / "examples/ddp.py"))
    assert one[0] - one[2] > 0.5  # it learns
    assert two == pytest.approx(one, rel=RELATIVE)
    saved = [torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("one", "two")]
    before, after = (content["model"] for content in saved)
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=ABSOLUTE)


def metrics(run_dir: Path) -> list[tuple[int, float]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [(entry["step"], entry["loss"]) for entry in map(json.loads, lines)]


def attempt(root: Path, run_dir: Path, drain: bool = False) -> int:
    """The exit code of an attempt of the third script, which is drained after its first save."""
    run_dir.mkdir(exist_ok=True)
    program = (sys.executable, str(root / "examples/ddp_restart.py"))
    nodes = Nodes(run_dir, run_dir.parent, f"--steps={STEPS}", nnodes=1, program=program)
    nodes.start(0)
    try:
        if drain:
            wait_until((run_dir / "state.pt").exists, "the first save", PATIENCE_S)
            (run_dir / "attempts/1/drain").touch()
        wait_until(lambda: nodes.started[0].poll() is not None, "the end", PATIENCE_S)
        return nodes.started[0].returncode
    finally:
        nodes.close()


def test_a_script_by_the_contract_stops_and_goes_on_without_a_change(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert attempt(root, parted, drain=True) == 75
    outcome = read(parted / "attempts/1/outcome.json")
    assert (outcome["outcome"], outcome["step"] < STEPS) == ("drained", True)
    for run_dir in (parted, whole):
        assert attempt(root, run_dir) == 0
        assert read(run_dir / "DONE")["step"] == STEPS
    assert metrics(parted) == metrics(whole)
    assert [step for step, _ in metrics(whole)] == list(range(1, STEPS + 1))
