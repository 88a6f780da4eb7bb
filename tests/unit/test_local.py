"""The local backend with real supervisors, nodes and ranks; only torchrun has a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.backends import BACKENDS, load_backend, local
from orchestrator.backends.base import Handle, State, Status, Submission
from orchestrator.backends.processes import Process, descendants
from orchestrator.backends.record import Record
from orchestrator.backends.supervisor import PACKAGES
from orchestrator.contract import RunPaths
from orchestrator.errors import BackendError, UserError
from running import PROGRAMS, rank_process, read, wait_for_end, wait_until

BACKEND = local.BACKEND
NODE_SH = """
export PYTHONPATH={programs}
exec "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_NODE_PY" --agent stub_agent \
  --run-dir "$ORCHESTRATE_RUN_DIR" --workdir "$ORCHESTRATE_WORKDIR" \
  --nnodes 2 --node-rank "$1" --nproc-per-node 2 --head "$ORCHESTRATE_HEAD" \
  --port "$ORCHESTRATE_PORT" --address "$ORCHESTRATE_ADDRESS" --id "$ORCHESTRATE_ID" \
  --start-timeout-s 30 --shutdown-timeout-s {shutdown} --allow-loopback --echo \
  -- "$ORCHESTRATE_PYTHON" {programs}/program.py {mode}
"""


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


@dataclass
class Runs:
    """Submits runs below one root and ends at the close what is left of them."""

    root: Path
    handles: list[Handle] = field(default_factory=list)
    node_sh: str = NODE_SH

    def submit(
        self, mode: str = "done", name: str = "demo", fresh: bool = False, **launch: object
    ) -> Submission:
        content: dict[str, object] = {
            "version": 1, "name": name, "num_nodes": 2, "ranks_per_node": 2, "failures": 3,
            "requeues": 10, "deadline_s": None, "start_timeout_s": 30, "shutdown_timeout_s": 20,
        }  # fmt: skip
        content |= launch
        shutdown = content["shutdown_timeout_s"]
        script = self.node_sh.format(
            programs=shlex.quote(str(PROGRAMS)), mode=mode, shutdown=shutdown
        )
        files = {"launch.json": json.dumps(content), "node.sh": script}
        files["trainer.json"] = json.dumps({"steps": 7})
        submission = BACKEND.submit(
            Files(name, files),
            runs_root=self.root,
            workdir=self.root.parent,
            job_text="name: demo\n",
            fresh=fresh,
        )
        self.handles.append(submission.handle)
        return submission

    def close(self) -> None:
        for handle in self.handles:
            if (record := Record.read(handle.run_dir)) and record.is_alive:
                BACKEND.cancel(handle, now=True)


@pytest.fixture(params=["runs", "r u'n\"s\n$(x) k=v,w"])
def any_runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    """A runs root with an ordinary and one with a hostile name."""
    made = Runs(tmp_path / str(request.param))
    yield made
    made.close()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "runs")
    yield made
    made.close()


def status(handle: Handle) -> Status:
    return BACKEND.status([handle])[0]


def wait_final(handle: Handle) -> Status:
    wait_until(lambda: status(handle).state.is_final, f"the end of {handle.run}")
    return status(handle)


def wait_ready(handle: Handle, attempt: int = 1) -> None:
    """Return when all four ranks are in their program."""
    for rank in range(4):
        ready = handle.run_dir / f"attempts/{attempt}/ready-{rank}"
        wait_until(ready.exists, f"{ready}: {status(handle)}")


def supervisor(handle: Handle) -> Process:
    record = Record.read(handle.run_dir)
    assert record is not None
    return record.process


def tree(handle: Handle) -> list[Process]:
    root = supervisor(handle)
    return [root, *descendants(root.pid)]


def codes(handle: Handle) -> list[int]:
    record = Record.read(handle.run_dir)
    assert record is not None
    return [ended.code for ended in record.ended]


def test_a_run_goes_to_its_end_and_is_not_run_again(any_runs: Runs) -> None:
    submission = any_runs.submit("done")
    assert submission.started
    handle = submission.handle
    assert wait_final(handle) == Status("demo", State.DONE, 1, "done", None, 7)
    again = any_runs.submit("done")
    assert not again.started
    assert "is done" in again.message
    assert RunPaths(handle.run_dir).newest_attempt() == 1
    assert BACKEND.list(any_runs.root) == [handle]
    receipt = read(handle.run_dir / "receipt.json")
    assert receipt["workdir"] == str(any_runs.root.parent)
    assert (handle.run_dir / "job.yaml").read_text() == "name: demo\n"
    log = (handle.run_dir / "logs/node-1.log").read_text()
    assert f"] rank 3 of 4 in {any_runs.root.parent}" in log


def test_a_crash_is_repeated_three_times_at_most(runs: Runs) -> None:
    handle = runs.submit("crash").handle
    final = wait_final(handle)
    assert final.state is State.FAILED
    assert final.reason.startswith("attempts.failures of 3 used up: rank 1 on node 0")
    assert codes(handle) == [1, 1, 1, 1]


def test_a_crash_within_the_budget_is_made_good(runs: Runs) -> None:
    handle = runs.submit("crash-until=3").handle
    assert wait_final(handle).state is State.DONE
    assert codes(handle) == [1, 1, 0]


def test_a_configuration_error_is_not_repeated(runs: Runs) -> None:
    handle = runs.submit("configuration").handle
    final = wait_final(handle)
    assert final.state is State.FAILED
    assert "configuration, not repeated" in final.reason
    assert "no data" in final.reason
    assert codes(handle) == [78]


def test_a_drain_is_followed_by_the_next_attempt(runs: Runs) -> None:
    handle = runs.submit("wait", requeues=1).handle
    for attempt in (1, 2):
        wait_ready(handle, attempt)
        RunPaths(handle.run_dir).drain(attempt).touch()
    assert wait_final(handle).reason.startswith("attempts.requeues of 1 used up")
    assert codes(handle) == [75, 75]


def test_after_the_deadline_nothing_is_repeated(runs: Runs) -> None:
    handle = runs.submit("crash", deadline_s=0).handle
    assert (
        "attempts.deadline of 0 s passed, counted from this submit: rank 1"
        in wait_final(handle).reason
    )
    assert codes(handle) == [1]


@pytest.mark.parametrize("victim", ["rank", "agent", "node 0", "node 1"])
def test_after_a_kill_nothing_is_left_and_a_new_attempt_runs(runs: Runs, victim: str) -> None:
    handle = runs.submit("wait", shutdown_timeout_s=1).handle
    wait_ready(handle)
    root, *below = tree(handle)
    find_victim(root, victim).send(signal.SIGKILL)
    wait_ready(handle, 2)
    wait_for_end(below)
    RunPaths(handle.run_dir).drain(2).touch()
    wait_ready(handle, 3)
    assert codes(handle) == [1, 75]


def find_victim(root: Process, victim: str) -> Process:
    if victim == "rank":
        return rank_process(root.pid, 2)
    words = {"agent": b"stub_agent\0--nnodes", "node 0": b"--node-rank\0000\0"}
    word = words.get(victim, b"--node-rank\0001\0")
    for process in descendants(root.pid):
        if word in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            return process
    raise AssertionError(victim)


def test_a_killed_supervisor_leaves_nothing_and_is_lost(runs: Runs) -> None:
    handle = runs.submit("wait-plain").handle
    wait_ready(handle)
    everyone = tree(handle)
    supervisor(handle).send(signal.SIGKILL)
    wait_for_end(everyone)
    lost = status(handle)
    assert lost.state is State.LOST
    assert "submit it again" in lost.reason
    assert "does not run here" in BACKEND.cancel(handle)
    assert runs.submit("done").started
    assert wait_final(handle).state is State.DONE
    assert RunPaths(handle.run_dir).newest_attempt() == 2


def test_the_same_name_submitted_twice_at_once_trains_once(runs: Runs) -> None:
    with ThreadPoolExecutor(4) as pool:
        submissions = list(pool.map(lambda _: runs.submit("wait"), range(4)))
    assert sorted(s.started for s in submissions) == [False, False, False, True]
    assert all("is running already" in s.message for s in submissions if not s.started)
    handle = submissions[0].handle
    wait_ready(handle)
    assert len([p for p in descendants(supervisor(handle).pid) if is_rank(p)]) == 4
    BACKEND.cancel(handle)
    assert codes(handle) == [75]


def is_rank(process: Process) -> bool:
    return b"program.py" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[1]


def test_two_runs_at_once_do_not_collide(runs: Runs) -> None:
    handles = [runs.submit("wait", name=name).handle for name in ("one", "two")]
    for handle in handles:
        wait_ready(handle)
    states = [s.state for s in BACKEND.status(handles)]
    assert states == [State.RUNNING, State.RUNNING]
    assert BACKEND.list(runs.root) == handles
    for handle in handles:
        BACKEND.cancel(handle, now=True)


def test_cancel_drains_and_submit_again_continues(runs: Runs) -> None:
    handle = runs.submit("wait").handle
    wait_ready(handle)
    everyone = tree(handle)
    assert "CANCELLED" in BACKEND.cancel(handle)
    wait_for_end(everyone)
    assert status(handle).state is State.CANCELLED
    assert codes(handle) == [75]
    assert read(RunPaths(handle.run_dir).outcome(1))["outcome"] == "drained"
    assert "continues" in runs.submit("done").message
    assert wait_final(handle) == Status("demo", State.DONE, 2, "done", None, 7)


def test_cancel_of_a_run_that_just_finishes_is_done(runs: Runs) -> None:
    handle = runs.submit("finish").handle
    wait_ready(handle)
    assert "DONE" in BACKEND.cancel(handle)


def test_cancel_ends_what_does_not_drain(runs: Runs) -> None:
    handle = runs.submit("stubborn", shutdown_timeout_s=1).handle
    wait_ready(handle)
    everyone = tree(handle)
    with pytest.raises(BackendError, match="not drained within 1 s"):
        BACKEND.cancel(handle)
    wait_for_end(everyone)
    assert status(handle).state is State.CANCELLED
    assert "not drained within 1 s of SIGTERM, killed" in status(handle).reason
    assert "steps since the last checkpoint are lost" in status(handle).reason
    record = Record.read(handle.run_dir)
    assert record is not None
    assert not record.drained


@pytest.mark.case("T20")
def test_cancel_gives_slow_checkpoints_the_time_that_they_need(runs: Runs) -> None:
    handle = runs.submit("slow=3", shutdown_timeout_s=1).handle
    wait_ready(handle)
    RunPaths(handle.run_dir).grace.write_text('{"version": 1, "seconds": 60}')
    assert "CANCELLED" in BACKEND.cancel(handle)
    assert codes(handle) == [75]


def test_cancel_in_the_pause_between_two_attempts_loses_nothing(runs: Runs) -> None:
    handle = runs.submit("crash", failures=9).handle
    wait_until(lambda: "next attempt in 8 s" in status(handle).reason, "a long pause")
    assert "CANCELLED" in BACKEND.cancel(handle)
    assert codes(handle) == [1, 1, 1, 1]
    record = Record.read(handle.run_dir)
    assert record is not None
    assert record.drained


def test_a_record_that_cannot_be_written_does_not_end_the_run(runs: Runs) -> None:
    handle = runs.submit("wait").handle
    wait_ready(handle)
    path = handle.run_dir / "supervisor.json"
    wait_until(lambda: status(handle).state is State.RUNNING, "it runs")
    kept = path.read_bytes()
    path.unlink()
    (path / "in the way").mkdir(parents=True)  # a rename onto it fails, also for root
    RunPaths(handle.run_dir).drain(1).touch()
    wait_ready(handle, 2)
    (path / "in the way").rmdir()
    path.rmdir()
    path.write_bytes(kept)
    RunPaths(handle.run_dir).drain(2).touch()
    wait_ready(handle, 3)
    wait_until(lambda: codes(handle) == [75, 75], "the record has all attempts again")
    assert "cannot write the record" in (handle.run_dir / "supervisor.log").read_text()
    assert not list(handle.run_dir.glob(".supervisor.json.*"))
    BACKEND.cancel(handle)


def test_nodes_that_cannot_be_started_are_a_failed_attempt(runs: Runs) -> None:
    (runs.root / "demo/logs/node-1.log").mkdir(parents=True)
    handle = runs.submit("done", failures=1).handle
    final = wait_final(handle)
    assert final.state is State.FAILED
    assert "the nodes could not be started or followed: " in final.reason
    assert "node-1.log" in final.reason
    assert codes(handle) == [1, 1]


def test_a_supervisor_that_cannot_write_its_record_does_not_start(runs: Runs) -> None:
    (runs.root / "demo/supervisor.json/in the way").mkdir(parents=True)
    with pytest.raises(BackendError, match="cannot write the record"):
        runs.submit("done")


def test_cancel_now_kills_the_whole_tree(runs: Runs) -> None:
    handle = runs.submit("stubborn").handle
    wait_ready(handle)
    everyone = tree(handle)
    assert len(everyone) >= 1 + 2 + 2 + 4 + 4  # supervisor, nodes, agents, ranks, their helpers
    assert "CANCELLED" in BACKEND.cancel(handle, now=True)
    wait_for_end(everyone)
    assert status(handle).state is State.CANCELLED


def test_fresh_renames_the_old_run(runs: Runs) -> None:
    first = wait_final(runs.submit("done").handle)
    for number in (1, 2):
        submission = runs.submit("done", fresh=True)
        assert f"demo.old-{number} now" in submission.message
        assert wait_final(submission.handle) == first
    assert sorted(p.name for p in runs.root.iterdir() if p.is_dir()) == [
        "demo", "demo.old-1", "demo.old-2",
    ]  # fmt: skip


def test_fresh_is_refused_while_it_runs(runs: Runs) -> None:
    handle = runs.submit("wait").handle
    with pytest.raises(BackendError, match="demo is running: cancel it before"):
        runs.submit("wait", fresh=True)
    BACKEND.cancel(handle, now=True)


def test_the_signals_of_the_submitters_terminal_do_not_reach_the_run(runs: Runs) -> None:
    handle = runs.submit("wait").handle
    wait_ready(handle)
    assert all(os.getsid(p.pid) != os.getsid(0) for p in tree(handle))
    BACKEND.cancel(handle, now=True)


def test_the_users_modules_do_not_take_the_place_of_ours(runs: Runs) -> None:
    runs.root.mkdir()
    for folder in (runs.root, runs.root.parent):
        for name in ("trainer", "orchestrator", "json"):
            (folder / f"{name}.py").write_text("raise SystemExit('the user folder won')")
    assert wait_final(runs.submit("done").handle).state is State.DONE


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x", ".hidden", "a\0b"])
def test_a_name_is_one_folder(runs: Runs, name: str) -> None:
    with pytest.raises(UserError, match="it names a folder"):
        runs.submit(name=name)
    assert not runs.root.exists()


def test_a_run_of_another_machine_is_unknown(runs: Runs) -> None:
    handle = runs.submit("done").handle
    wait_final(handle)
    path = handle.run_dir / "supervisor.json"
    record = read(path) | {"state": "RUNNING", "boot_id": "x", "host": "elsewhere"}
    path.write_text(json.dumps(record))
    assert status(handle).state is State.UNKNOWN
    assert "elsewhere" in status(handle).reason
    path.write_text("{")
    assert status(handle).state is State.UNKNOWN


def test_the_step_is_the_newest_of_the_metrics(runs: Runs) -> None:
    handle = runs.submit("done").handle
    wait_final(handle)
    lines = ['{"step": 3}', '{"step": 4}', '{"event": "end"}', '{"step": 5, "lo']
    (handle.run_dir / "metrics.jsonl").write_text("\n".join(lines))
    assert (status(handle).step, status(handle).steps) == (4, 7)


def test_a_supervisor_that_cannot_start_is_reported(runs: Runs) -> None:
    with pytest.raises(BackendError, match="did not start") as caught:
        runs.submit("done", num_knots=1)
    assert "not a launch file of this version" in str(caught.value)
    assert runs.submit("done").started


def test_an_installation_without_torch_says_what_to_install(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ENTRY", Path("/no/such/file"))
    with pytest.raises(BackendError, match=r"pip install 'orchestrate-training\[trainer\]'"):
        runs.submit("done")
    assert not runs.root.exists()


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_has_the_whole_interface(name: str) -> None:
    backend = load_backend(name)
    assert backend.name == name
    for method in ("submit", "handle", "status", "cancel", "list", "run_store"):
        assert callable(getattr(backend, method))


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(BackendError, match=r"backend nope: .* Known: .*local"):
        load_backend("nope")


def test_a_missing_library_of_one_backend_breaks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "broken", "orchestrator.no_such_module")
    with pytest.raises(BackendError, match="backend broken: cannot be loaded"):
        load_backend("broken")
    assert load_backend("local").name == "local"


def test_the_supervisor_imports_the_standard_library_alone() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGES)!r})\n"
        "import orchestrator.backends.supervisor\n"
        "names = {m.split('.')[0] for m in sys.modules} - {'orchestrator', '__main__'}\n"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
