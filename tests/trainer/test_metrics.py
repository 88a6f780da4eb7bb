"""What rank 0 tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from runs import Run, configuration
from trainer.contract import Contract
from trainer.metrics import Clock, Metrics, peak_memory_bytes, utilization

CPU = torch.device("cpu")


def contract(run_dir: Path, rank: int = 0) -> Contract:
    return Contract(rank, rank, 2, 1, run_dir, run_dir / "checkpoints", run_dir)


def test_lines_go_to_the_file_and_behind_a_tag_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics(contract(tmp_path), tensorboard=False, step=0)
    metrics.line(3, loss=1.5, losses=[2.0, 1.5])
    metrics.event("checkpoint", 3, path="x")
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 3, "attempt": 1, "loss": 1.5, "losses": [2.0, 1.5]}
    event = json.loads(lines[1])
    assert event.pop("time") > 0
    assert event == {"event": "checkpoint", "step": 3, "attempt": 1, "path": "x"}
    assert capsys.readouterr().out.splitlines() == [f"[metrics] {line}" for line in lines]


def test_a_line_that_was_cut_off_is_ended_first(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    metrics = Metrics(contract(tmp_path), tensorboard=False, step=0)
    metrics.line(2)
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1}', '{"st', '{"step": 2, "attempt": 1}']


def test_other_ranks_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = Metrics(contract(tmp_path, rank=1), tensorboard=True, step=0)
    metrics.line(2, loss=1.0)
    metrics.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_what_json_has_no_word_for_does_not_end_the_writer(tmp_path: Path) -> None:
    metrics = Metrics(contract(tmp_path), tensorboard=False, step=0)
    metrics.line(1, loss=float("nan"), losses=[1.0, float("inf")], shares={"a": -float("inf")})
    metrics.event("x", 1, path=tmp_path)
    metrics.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first = {"step": 1, "attempt": 1, "loss": None, "losses": [1.0, None], "shares": {"a": None}}
    assert json.loads(lines[0]) == first
    assert json.loads(lines[1])["path"] == str(tmp_path)


def test_a_full_disk_costs_lines_and_not_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(contract(tmp_path), tensorboard=False, step=0)
    metrics.line(1, loss=1.0)
    metrics.event("x", 1)
    metrics.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("trainer: a line of metrics is not written: ")
        assert "No space left on device" in line


def test_tensorboard_that_is_not_there_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    metrics = Metrics(contract(tmp_path), tensorboard=True, step=0)
    metrics.line(1, loss=1.0)
    metrics.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "no TensorBoard files" in line


def test_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = Run(tmp_path)
    run.finish(configuration(logging__tensorboard=True, steps=2))
    files = list((run.run_dir / "tensorboard").iterdir())
    assert len(files) == 1
    assert files[0].stat().st_size > 100


def test_shares_of_time_add_up() -> None:
    clock = Clock()
    clock.data_s, clock.checkpoint_s = 1e-9, 2e-9
    training_s, shares = clock.read()
    assert training_s > 0
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
    assert clock.read()[1]["data"] == 0


def test_values_of_this_machine() -> None:
    assert peak_memory_bytes(CPU) > 10_000_000
    assert utilization(1e9, CPU) is None
