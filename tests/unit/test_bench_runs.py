"""Cells as runs of the local backend, with real supervisors and nodes; only torchrun has a
stand-in."""

from __future__ import annotations

import json
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import local
from orchestrator.backends.base import Status
from orchestrator.backends.waiting import wait
from orchestrator.bench import runs
from orchestrator.bench.cells import Cell
from orchestrator.bench.measured import Figures
from orchestrator.bench.runs import Place, Prepared
from running import PROGRAMS

NODE_SH = """
export PYTHONPATH={programs}
exec "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_NODE_PY" --agent stub_agent \
  --run-dir "$ORCHESTRATE_RUN_DIR" --workdir "$ORCHESTRATE_WORKDIR" \
  --nnodes 1 --node-rank "$1" --nproc-per-node 2 --head "$ORCHESTRATE_HEAD" \
  --port "$ORCHESTRATE_PORT" --address "$ORCHESTRATE_ADDRESS" --id "$ORCHESTRATE_ID" \
  --start-timeout-s 30 --shutdown-timeout-s 20 --allow-loopback \
  -- "$ORCHESTRATE_PYTHON" {programs}/program.py {mode}
"""
PLANNED = Figures(peak_bytes=7)


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


def prepared(name: str, mode: str) -> Prepared:
    launch = {
        "version": 1, "name": name, "num_nodes": 1, "ranks_per_node": 2, "failures": 0,
        "requeues": 0, "deadline_s": None, "start_timeout_s": 30, "shutdown_timeout_s": 20,
    }  # fmt: skip
    script = NODE_SH.format(programs=shlex.quote(str(PROGRAMS)), mode=mode)
    files = {"launch.json": json.dumps(launch), "node.sh": script, "trainer.json": "{}"}
    return Prepared(Cell("ddp", 1, 4), Files(name, files), 8, PLANNED)


def place(tmp_path: Path, timeout_s: float = 60) -> Place:
    return Place(local.BACKEND, tmp_path / "runs", tmp_path, "", timeout_s)


def test_a_cell_that_ends_well_and_its_checkpoints_go(tmp_path: Path) -> None:
    one = prepared("good", "done")
    row = place(tmp_path).run(one)
    assert (row.run, row.state, row.reason, row.planned) == ("good", "DONE", "", PLANNED)
    assert row.digest == one.digest != prepared("good", "wait").digest
    (tmp_path / "runs/good/checkpoints/old").mkdir(parents=True)
    assert place(tmp_path).run(one).state == "DONE"  # anew, in a folder of its own
    assert not (tmp_path / "runs/good/checkpoints").exists()


def test_a_cell_that_fails_has_its_reason(tmp_path: Path) -> None:
    row = place(tmp_path).run(prepared("bad", "configuration"))
    assert (row.state, row.planned) == ("FAILED", PLANNED)
    assert row.reason
    assert "\n" not in row.reason


def test_a_cell_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    row = place(tmp_path, timeout_s=1).run(prepared("long", "wait"))
    assert row.state == "FAILED"
    assert row.reason.startswith("after 1 s still not at an end: long")
    assert status(tmp_path, "long").state.is_final


def test_ctrl_c_stops_the_cell_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_options: object) -> list[Status]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place(tmp_path).run(prepared("mine", "wait"))
    assert status(tmp_path, "mine").state.is_final


def test_sigterm_stops_the_cell_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(*_args: object, **_options: object) -> list[Status]:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it goes on")

    monkeypatch.setattr(runs, "wait", waiting)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, runs.ended_by_sigterm():
        place(tmp_path).run(prepared("killed", "wait"))
    assert ended.value.code == 143
    assert status(tmp_path, "killed").state.is_final
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_cell_that_someone_cancels_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(*args: Any, **options: Any) -> list[Status]:
        (handle,) = args[1]
        local.BACKEND.cancel(handle, now=True)
        return wait(*args, **options)

    monkeypatch.setattr(runs, "wait", cancelled)
    row = place(tmp_path).run(prepared("other", "wait"))
    assert (row.state, row.planned) == ("CANCELLED", PLANNED)


def status(tmp_path: Path, name: str) -> Status:
    (found,) = local.BACKEND.status([local.BACKEND.handle(tmp_path / "runs" / name)])
    return found
