"""Sweeps on this machine, with real supervisors, nodes and ranks; only torchrun has a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.backends import local
from orchestrator.backends.base import Handle, State, Submission
from orchestrator.backends.record import Record
from orchestrator.errors import BackendError, UserError
from running import PROGRAMS, wait_until

BACKEND = local.BACKEND
# What program.py does stands in an element's trainer.json.
NODE_SH = """
export PYTHONPATH={programs}
mode=$(sed -n 's/.*"mode": "\\([^"]*\\)".*/\\1/p' "$ORCHESTRATE_RUN_DIR/rendered/trainer.json")
exec "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_NODE_PY" --agent stub_agent \
  --run-dir "$ORCHESTRATE_RUN_DIR" --workdir "$ORCHESTRATE_WORKDIR" \
  --nnodes 1 --node-rank "$1" --nproc-per-node 2 --head "$ORCHESTRATE_HEAD" \
  --port "$ORCHESTRATE_PORT" --address "$ORCHESTRATE_ADDRESS" --id "$ORCHESTRATE_ID" \
  --start-timeout-s 30 --shutdown-timeout-s 20 --allow-loopback \
  -- "$ORCHESTRATE_PYTHON" {programs}/program.py "$mode"
"""
LAUNCH = {
    "version": 1, "name": "tune", "num_nodes": 1, "ranks_per_node": 2, "failures": 3,
    "requeues": 10, "deadline_s": None, "start_timeout_s": 30, "shutdown_timeout_s": 20,
}  # fmt: skip


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


def rendered(modes: Sequence[str], at_once: int | None) -> Files:
    values = [{"train.seed": number} for number in range(len(modes))]
    script = NODE_SH.format(programs=shlex.quote(str(PROGRAMS)))
    files = {"launch.json": json.dumps(LAUNCH), "node.sh": script}
    files["sweep.json"] = json.dumps({"version": 1, "at_once": at_once, "values": values})
    for number, mode in enumerate(modes):
        files[f"trainer-{number:05}.json"] = json.dumps({"steps": 7, "mode": mode})
    return Files("tune", files)


@dataclass
class Runs:
    """Submits sweeps below one root and ends at the close what is left of them."""

    root: Path
    handles: list[Handle] = field(default_factory=list)

    def submit(self, *modes: str, at_once: int | None = None, fresh: bool = False) -> Submission:
        submission = BACKEND.submit(
            rendered(modes, at_once),
            runs_root=self.root,
            workdir=self.root.parent,
            job_text="",
            fresh=fresh,
        )
        self.handles.append(submission.handle)
        return submission

    def close(self) -> None:
        for handle in self.handles:
            record = Record.read(handle.run_dir)
            if record is not None and record.is_alive:
                BACKEND.cancel(handle, now=True)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "r u'n\"s")
    yield made
    made.close()


def states(handle: Handle) -> list[State]:
    return [row.status.state for row in BACKEND.elements(handle)]


def wait_ready(handle: Handle, number: int, attempt: int = 1) -> None:
    ready = handle.run_dir / f"{number}/attempts/{attempt}/ready-0"
    wait_until(ready.exists, f"{ready}: {states(handle)}")


def wait_for(handle: Handle, *wanted: State) -> None:
    wait_until(lambda: states(handle) == [*wanted], f"{wanted}, not {states(handle)}")


R, P, D, C = State.RUNNING, State.PENDING, State.DONE, State.CANCELLED


def test_some_run_at_once_and_the_others_wait(runs: Runs) -> None:
    submission = runs.submit("wait", "done", "wait", "done", at_once=2)
    handle = submission.handle
    assert submission.message == f"tune started in {handle.run_dir}, 4 of 4 elements"
    wait_ready(handle, 0)
    wait_ready(handle, 2)
    wait_for(handle, R, D, R, P)
    assert BACKEND.status([handle])[0].reason == "of 4 elements: 2 RUNNING, 1 PENDING, 1 DONE"
    assert BACKEND.elements(handle)[3].status.reason == "waits for its turn"
    assert not (handle.run_dir / "3/attempts").exists()
    again = runs.submit("wait", "done", "wait", "done", at_once=2)
    assert again.message == "tune is running already: nothing started"
    with pytest.raises(BackendError, match="cancel it before you start it --fresh"):
        runs.submit("done", fresh=True)
    assert BACKEND.handle(handle.run_dir) == handle
    assert BACKEND.list(runs.root) == [handle]

    words = "it had not started; submit the sweep again to continue"
    last = BACKEND.elements(handle)[3].handle
    assert BACKEND.cancel(last, now=True) == f"tune/3: CANCELLED ({words})"
    assert "tune/0: CANCELLED (drained" in BACKEND.cancel(BACKEND.elements(handle)[0].handle)
    wait_for(handle, C, D, R, C)
    assert "of 4 elements: 3 CANCELLED, 1 DONE" in BACKEND.cancel(handle)
    continued = runs.submit("done", "done", "done", "done")
    assert continued.message == f"tune continues in {handle.run_dir}, 3 of 4 elements"
    wait_for(handle, D, D, D, D)
    assert [row.status.attempt for row in BACKEND.elements(handle)] == [2, 1, 2, 1]
    assert "is done: nothing to start" in runs.submit("done", "done", "done", "done").message


def test_one_at_a_time_where_nothing_else_is_said(runs: Runs) -> None:
    handle = runs.submit("crash-until=2", "configuration", "wait").handle
    wait_ready(handle, 2)
    wait_for(handle, D, State.FAILED, R)
    assert BACKEND.elements(handle)[0].status.attempt == 2
    BACKEND.cancel(handle, now=True)
    assert states(handle) == [D, State.FAILED, C]


def test_an_element_that_cannot_start_does_not_end_the_others(runs: Runs) -> None:
    handle = runs.submit("wait", "done", "done").handle
    wait_ready(handle, 0)
    log = handle.run_dir / "1/supervisor.log"
    log.unlink(missing_ok=True)
    log.mkdir()
    assert "CANCELLED" in BACKEND.cancel(BACKEND.elements(handle)[0].handle)
    wait_for(handle, C, State.FAILED, D)
    assert "it could not be started" in BACKEND.elements(handle)[1].status.reason


def test_the_end_of_the_sweeps_supervisor_ends_all_of_it(runs: Runs) -> None:
    handle = runs.submit("wait", "done").handle
    wait_ready(handle, 0)
    own, element = Record.read(handle.run_dir), Record.read(handle.run_dir / "0")
    assert own is not None
    assert element is not None
    os.kill(own.pid, signal.SIGKILL)
    wait_until(lambda: not element.process.is_alive(), "the end of its child")
    assert states(handle) == [State.LOST, State.LOST]
    assert BACKEND.cancel(handle) == "tune does not run here: LOST"
    runs.submit("done", "done")
    wait_for(handle, D, D)


def test_what_a_sweep_may_become(runs: Runs) -> None:
    handle = runs.submit("done", "done").handle
    wait_for(handle, D, D)
    single = rendered(["done"], None)
    single.files["trainer.json"] = single.files.pop("trainer-00000.json")
    del single.files["sweep.json"]
    with pytest.raises(UserError, match="it was a sweep, and would be a single run now"):
        BACKEND.submit(single, runs_root=runs.root, workdir=runs.root.parent, job_text="")
    assert runs.submit("done", "done", "done").message.endswith("1 of 3 elements")
    wait_for(Handle("local", "tune", handle.run_dir, num_elements=3), D, D, D)
    assert "the old run folder is" in runs.submit("done", fresh=True).message
