"""Runs jobs on this machine: every node is a process, on a loopback address of its own."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import folder, processes, sweeps
from orchestrator.backends.base import (
    After,
    Element,
    Handle,
    RenderedFiles,
    State,
    Status,
    Submission,
)
from orchestrator.backends.record import Launch, Record
from orchestrator.backends.runstore import LocalRunStore, RunStore
from orchestrator.backends.site import LocalSite
from orchestrator.backends.supervisor import ENTRY, LEAVE_GRACE_S, LOG_FILE, PACKAGES
from orchestrator.contract import RunPaths
from orchestrator.errors import BackendError, UserError

KILL_TIMEOUT_S = 10.0
SITE = LocalSite()
# -I: nothing in the run folder or the user's folder can take the place of a module.
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from orchestrator.backends.{module} import main; sys.exit(main(sys.argv[2:]))"
)


class LocalBackend:
    """The backend `local`."""

    name = "local"
    poll_s = 0.3

    def at(self, ssh: str) -> LocalBackend:
        """Raises UserError: it runs jobs here alone."""
        raise UserError(f"ssh: {ssh}: the backend local starts jobs on this machine; remove `ssh`")

    def submit(
        self,
        rendered: RenderedFiles,
        *,
        runs_root: Path,
        workdir: Path,
        job_text: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        """Start the run, or continue it, under a detached supervisor."""
        _check_installation()
        if after:
            raise UserError("after: the backend local has no queue; start the one when the other "
                            "has ended")  # fmt: skip
        run_dir = folder.place(SITE, runs_root, rendered.name)
        sweep = sweeps.sweep_of(rendered)
        num_elements = len(sweep.values) if sweep else 0
        handle = Handle(self.name, rendered.name, run_dir, num_elements=num_elements)
        with folder.locked(run_dir, lambda: _is_alive(handle)) as lock:
            if lock is None:
                return _is_running(handle, fresh)
            kept = folder.put_aside(SITE, run_dir) if fresh else None
            old = folder.owned(SITE, run_dir, self.name)
            sweeps.check_continues(SITE, old, sweep)
            left = sweeps.numbers_left(SITE, run_dir, sweep) if sweep else None
            if RunPaths(handle.run_dir).done.exists() or left == []:
                text = "is done: nothing to start; --fresh starts it anew"
                return Submission(handle, False, f"{handle.run} {text}")
            folder.write(SITE, run_dir, rendered, job_text)
            own = [sweeps.element(handle, number) for number in left or ()]
            sweeps.write_receipts(SITE, handle, own, workdir.absolute(), rendered)
            if sweep:
                sweeps.prepare(SITE, run_dir, rendered, left or ())
                words = [str(sweep.at_once or 1), *map(str, left or ())]
                _start(handle, "sweeper", workdir, lock, words)
            else:
                _start(handle, "supervisor", workdir, lock)
        text = f"{'continues' if old else 'started'} in {handle.run_dir}"
        text += f", {len(left)} of {num_elements} elements" if left else ""
        text += f"; the old run folder is {kept} now" if kept else ""
        return Submission(handle, True, f"{handle.run} {text}")

    def online_check(self, rendered: RenderedFiles) -> str:
        """Whether a run can start here. Raises BackendError if not."""
        _check_installation()
        return f"{rendered.name} would start at once on this machine"

    def handle(self, run_dir: Path) -> Handle:
        """The handle of a run folder."""
        place = run_dir.absolute()
        (receipt,) = SITE.ends([place / contract.RECEIPT_FILE], folder.TAIL_BYTES)
        return folder.handle_of(place, receipt, self.name) or Handle(self.name, place.name, place)

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle."""
        return sweeps.statuses(SITE, handles, _ask)

    def elements(self, handle: Handle) -> list[Element]:
        """The elements of a sweep."""
        return sweeps.elements(SITE, handle, _ask)

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        """Stop a run and wait until it has stopped, a little longer than node.py does.

        Raises BackendError if it would not stop, or had to be killed without a checkpoint.
        """
        record = Record.read(handle.run_dir)
        if record is None or not record.is_alive:
            return f"{handle.run} does not run here: {_status(handle).state.value}"
        if _waits(handle, record):
            # A supervisor that takes over now writes its record first and looks for this file then.
            LocalRunStore(handle.run_dir).write(sweeps.CANCEL_FILE, b"")
            record = Record.read(handle.run_dir) or record
        if _waits(handle, record):
            return _leave_out(handle, record)
        if now:
            return _kill(handle, record)
        record.process.send(signal.SIGTERM)
        launch = Launch.read(handle.run_dir / contract.RENDERED_DIR / "launch.json")
        grace = LocalRunStore(handle.run_dir).tail(contract.GRACE_FILE, 0)
        drain_s = contract.drain_limit_s(launch.shutdown_timeout_s, grace)
        limit_s = drain_s + 2 * LEAVE_GRACE_S
        if not processes.await_end(record.process, limit_s):
            raise BackendError(f"{handle.run} did not stop within {limit_s:g} s: cancel it --now")
        (status,) = self.status([handle])
        text = f"{handle.run}: {status.state.value} ({status.reason})"
        records = [Record.read(folder) for folder in _folders(handle)]
        if any(ended is not None and not ended.drained for ended in records):
            raise BackendError(text)
        return text

    def list(self, runs_root: Path) -> list[Handle]:
        """All runs under a folder, by name."""
        return folder.find(SITE, runs_root, self.name)

    def run_store(self, handle: Handle) -> RunStore:
        """Access to the run folder."""
        return LocalRunStore(handle.run_dir)


BACKEND = LocalBackend()


def _check_installation() -> None:
    """Raises BackendError where the trainer cannot run: a launcher's installation has no torch."""
    if importlib.util.find_spec("torch") is None or not ENTRY.is_file():
        raise BackendError(
            "this installation is the launcher alone, and a local run needs the trainer and torch: "
            "pip install 'orchestrate-training[trainer]'"
        )


def _is_alive(handle: Handle) -> bool:
    """Whether a supervisor looks after the run, here and now."""
    record = Record.read(handle.run_dir)
    if record is None or not record.is_alive or State(record.state).is_final:
        return False
    # A sweep's supervisor lives on for a moment when the last element has ended.
    return not BACKEND.status([BACKEND.handle(handle.run_dir)])[0].state.is_final


def _is_running(handle: Handle, fresh: bool) -> Submission:
    if fresh:
        raise BackendError(f"{handle.run} is running: cancel it before you start it --fresh")
    attempt = "" if handle.num_elements else f" (attempt {_status(handle).attempt or 1})"
    return Submission(handle, False, f"{handle.run} is running already{attempt}: nothing started")


def _start(
    handle: Handle, module: str, workdir: Path, lock: int, words: Sequence[str] = ()
) -> None:
    """Start a supervisor in a session of its own: Ctrl-C and the end of the terminal do not reach
    it.

    Args:
        module: whose main is it.
        words: more arguments.
    """
    arguments = [str(PACKAGES), str(handle.run_dir), str(workdir.absolute()), str(lock), *words]
    log_path = handle.run_dir / LOG_FILE
    with log_path.open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-I", "-c", START.format(module=module), *arguments],
            cwd=handle.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
            check=False,
        )
    if done.returncode:
        words = log_path.read_text(errors="replace")[-2000:].strip()
        raise BackendError(f"the supervisor of {handle.run} did not start:\n{words}")


def _folders(handle: Handle) -> list[Path]:
    """The folders with records: the run's own, and those of its elements if it is a sweep."""
    return [handle.run_dir, *(handle.run_dir / str(n) for n in range(handle.num_elements))]


def _waits(handle: Handle, record: Record) -> bool:
    """Whether it is an element that waits: the record names the process of the whole sweep."""
    sweep = Record.read(handle.run_dir.parent) if "/" in handle.run else None
    return sweep is not None and sweep.process == record.process


def _leave_out(handle: Handle, record: Record) -> str:
    """Note that an element that waits is cancelled."""
    reason = "it had not started; submit the sweep again to continue"
    replace(record, state=State.CANCELLED.value, reason=reason).write(handle.run_dir)
    return f"{handle.run}: {State.CANCELLED.value} ({reason})"


def _kill(handle: Handle, record: Record) -> str:
    left = processes.kill_tree(record.process, KILL_TIMEOUT_S)
    if left:
        pids = [process.pid for process in left]
        raise BackendError(f"{handle.run}: these processes would not end: {pids}")
    reason = "killed at once; submit again to continue from the newest checkpoint"
    for place in _folders(handle):
        own = Record.read(place) or (record if place == handle.run_dir else None)
        if own is not None and not State(own.state).is_final:
            replace(own, state=State.CANCELLED.value, reason=reason).write(place)
    return f"{handle.run}: {State.CANCELLED.value} ({reason})"


def _ask(handles: Sequence[Handle]) -> list[Status]:
    return [_status(handle) for handle in handles]


def _status(handle: Handle) -> Status:
    record = Record.read(handle.run_dir)
    state, reason = _state(record)
    attempt = RunPaths(handle.run_dir).newest_attempt() or None
    paths = [RunPaths(handle.run_dir).metrics, RunPaths(handle.run_dir).rendered / "trainer.json"]
    metrics, trainer = SITE.ends(paths, folder.TAIL_BYTES)
    step, steps = folder.step_of(metrics), folder.steps_of(trainer)
    return Status(handle.run, state, attempt, reason, step, steps)


def _state(record: Record | None) -> tuple[State, str]:
    if record is None:
        return State.UNKNOWN, "it has no supervisor.json: it was never started here"
    try:
        state = State(record.state)
    except ValueError:
        return State.UNKNOWN, f"supervisor.json has the state {record.state!r}"
    if state.is_final or record.is_alive:
        return state, record.reason
    if record.host != socket.gethostname():
        return State.UNKNOWN, f"it runs, or ran, on {record.host}: ask there"
    return State.LOST, f"its supervisor (pid {record.pid}) is gone; submit it again to continue"
