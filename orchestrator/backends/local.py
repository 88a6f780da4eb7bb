"""Runs jobs on this machine: every node is a process, on a loopback address of its own."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator import __version__, contract
from orchestrator.backends import processes
from orchestrator.backends.base import Handle, RenderedFiles, State, Status, Submission
from orchestrator.backends.record import Launch, Record, write_json
from orchestrator.backends.runstore import LocalRunStore, RunStore
from orchestrator.backends.supervisor import ENTRY, LEAVE_GRACE_S, LOG_FILE, PACKAGES
from orchestrator.contract import RunPaths
from orchestrator.errors import BackendError, UserError

LOCK_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.05
METRICS_TAIL_BYTES = 65536
# -I: nothing in the run folder or the user's folder can take the place of a module.
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from orchestrator.backends.supervisor import main; sys.exit(main(sys.argv[2:]))"
)


class LocalBackend:
    """The backend `local`."""

    name = "local"

    def submit(
        self,
        rendered: RenderedFiles,
        *,
        runs_root: Path,
        workdir: Path,
        job_text: str,
        fresh: bool = False,
    ) -> Submission:
        """Start the run, or continue it, under a detached supervisor."""
        _check_installation()
        handle = Handle(self.name, rendered.name, _run_dir(runs_root, rendered.name))
        with _lock(handle) as lock:
            if lock is None:
                return _is_running(handle, fresh)
            kept = _put_aside(handle.run_dir) if fresh else None
            if RunPaths(handle.run_dir).done.exists():
                text = "is done: nothing to start; --fresh starts it anew"
                return Submission(handle, False, f"{handle.run} {text}")
            is_new = not RunPaths(handle.run_dir).receipt.exists()
            _write_files(handle, rendered, workdir, job_text)
            _start_supervisor(handle, workdir, lock)
        text = f"{'started' if is_new else 'continues'} in {handle.run_dir}"
        text += f"; the old run folder is {kept} now" if kept else ""
        return Submission(handle, True, f"{handle.run} {text}")

    def handle(self, run_dir: Path) -> Handle:
        """The handle of a run folder."""
        folder = run_dir.absolute()
        return Handle(self.name, folder.name, folder)

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle."""
        return [_status(handle) for handle in handles]

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        """Stop a run and wait until it has stopped, for `timeouts.shutdown` and a little longer.

        Raises BackendError if it would not stop.
        """
        record = Record.read(handle.run_dir)
        if record is None or not record.is_alive:
            return f"{handle.run} does not run here: {_status(handle).state.value}"
        if now:
            return _kill(handle, record)
        record.process.send(signal.SIGTERM)
        launch = Launch.read(handle.run_dir / contract.RENDERED_DIR / "launch.json")
        limit_s = launch.shutdown_timeout_s + 2 * LEAVE_GRACE_S
        if not processes.await_end(record.process, limit_s):
            raise BackendError(f"{handle.run} did not stop within {limit_s:g} s: cancel it --now")
        status = _status(handle)
        return f"{handle.run}: {status.state.value} ({status.reason})"

    def list(self, runs_root: Path) -> list[Handle]:
        """All runs under a folder, by name."""
        if not runs_root.is_dir():
            return []
        folders = sorted(path for path in runs_root.iterdir() if RunPaths(path).receipt.is_file())
        return [self.handle(folder) for folder in folders]

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


def _run_dir(runs_root: Path, name: str) -> Path:
    if name in ("", ".", "..") or "/" in name or "\0" in name or name.startswith("."):
        raise UserError(f"name {name!r}: it names a folder under {runs_root}, so it has no '/'")
    return runs_root.absolute() / name


@contextmanager
def _lock(handle: Handle) -> Iterator[int | None]:
    """The run's lock as a file descriptor; None if a supervisor has it.

    It lies beside the run folder, since --fresh renames that. The supervisor inherits the
    descriptor, and with it the lock: between submit and supervisor it is never free.
    """
    path = handle.run_dir.with_name(f".{handle.run}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise BackendError(f"{path}: cannot make it: {error.strerror}") from None
    try:
        yield descriptor if _take(descriptor, handle) else None
    finally:
        os.close(descriptor)


def _take(descriptor: int, handle: Handle) -> bool:
    """Take the lock; False if a supervisor has it. Another submit is waited for."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            record = Record.read(handle.run_dir)
            if record and record.is_alive and not State(record.state).is_final:
                return False
        if time.monotonic() > deadline:
            text = f"locked for {LOCK_TIMEOUT_S:g} s, by another submit or from another machine"
            raise BackendError(f"{handle.run_dir}: {text}; try again, or cancel the run there")
        time.sleep(POLL_S)


def _is_running(handle: Handle, fresh: bool) -> Submission:
    if fresh:
        raise BackendError(f"{handle.run} is running: cancel it before you start it --fresh")
    attempt = _status(handle).attempt
    text = f"is running already (attempt {attempt or 1}): nothing started"
    return Submission(handle, False, f"{handle.run} {text}")


def _put_aside(run_dir: Path) -> Path | None:
    """Rename the run folder to a free name; None if there is none to rename."""
    if not run_dir.exists():
        return None
    taken = {path.name for path in run_dir.parent.iterdir()}
    number = next(n for n in range(1, len(taken) + 2) if f"{run_dir.name}.old-{n}" not in taken)
    return run_dir.rename(run_dir.with_name(f"{run_dir.name}.old-{number}"))


def _write_files(handle: Handle, rendered: RenderedFiles, workdir: Path, job_text: str) -> None:
    """The job file, what was rendered and, last, the receipt: with it this is a run."""
    paths = RunPaths(handle.run_dir)
    paths.root.mkdir(exist_ok=True)
    store = LocalRunStore(handle.run_dir)
    shutil.rmtree(paths.rendered, ignore_errors=True)
    for name, text in rendered.files.items():
        store.write(f"{contract.RENDERED_DIR}/{name}", text.encode())
    store.write(contract.JOB_FILE, job_text.encode())
    receipt = {
        "version": 1,
        "name": handle.run,
        "backend": handle.backend,
        "run_dir": str(handle.run_dir),
        "workdir": str(workdir.absolute()),
        "host": socket.gethostname(),
        "tool_version": __version__,
        "submitted_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": sorted(rendered.files),
    }
    write_json(paths.receipt, receipt)


def _start_supervisor(handle: Handle, workdir: Path, lock: int) -> None:
    """Start it in a session of its own: Ctrl-C and the end of the terminal do not reach it."""
    arguments = [str(PACKAGES), str(handle.run_dir), str(workdir.absolute()), str(lock)]
    log_path = handle.run_dir / LOG_FILE
    with log_path.open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-I", "-c", START, *arguments],
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


def _kill(handle: Handle, record: Record) -> str:
    left = processes.kill_tree(record.process, KILL_TIMEOUT_S)
    if left:
        pids = [process.pid for process in left]
        raise BackendError(f"{handle.run}: these processes would not end: {pids}")
    record = Record.read(handle.run_dir) or record
    reason = "killed at once; submit again to continue from the newest checkpoint"
    replace(record, state=State.CANCELLED.value, reason=reason).write(handle.run_dir)
    return f"{handle.run}: {State.CANCELLED.value} ({reason})"


def _status(handle: Handle) -> Status:
    record = Record.read(handle.run_dir)
    state, reason = _state(record)
    attempt = RunPaths(handle.run_dir).newest_attempt() or None
    return Status(handle.run, state, attempt, reason, _step(handle.run_dir), _steps(handle.run_dir))


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


def _step(run_dir: Path) -> int | None:
    """The newest step in the metrics."""
    path = RunPaths(run_dir).metrics
    size = path.stat().st_size if path.is_file() else 0
    lines = LocalRunStore(run_dir).tail(path.name, max(0, size - METRICS_TAIL_BYTES)).splitlines()
    for line in reversed(lines):
        try:
            step = json.loads(line).get("step")
        except (ValueError, AttributeError):
            continue  # cut off at the front, or still being written
        if isinstance(step, int):
            return step
    return None


def _steps(run_dir: Path) -> int | None:
    try:
        content = json.loads((run_dir / contract.RENDERED_DIR / "trainer.json").read_bytes())
        return int(content["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
