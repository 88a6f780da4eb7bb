"""Looks after one run on this machine: starts its nodes, and the next attempt within the budgets.

The local backend starts it detached, with the lock of the run already taken. It needs the standard
library alone. It ends when the run is done, has failed, or was cancelled (SIGTERM); whenever it
ends, also by SIGKILL, the kernel ends all that it had started.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import zlib
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from orchestrator import contract
from orchestrator.backends import processes
from orchestrator.backends.attempts import gravest, next_state, pause_s
from orchestrator.backends.base import State
from orchestrator.backends.record import Ended, Launch, Record
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.contract import RunPaths
from orchestrator.errors import BackendError

# Both packages are installed side by side. A look-up by name could find the user's own "trainer".
PACKAGES = Path(__file__).resolve().parents[2]
NODE_PY = PACKAGES / "trainer" / "node.py"
ENTRY = PACKAGES / "trainer" / "entry.py"
LOG_FILE = "supervisor.log"
# In the folder of a sweep's element: it is not to run.
CANCEL_FILE = "cancel"
# When one node has left, all are about to: they have agreed on the end, or have lost that one.
LEAVE_GRACE_S = 30.0
END_TIMEOUT_S = 10.0
TICK_S = 0.05
PORTS = range(20000, 32000)  # below the ephemeral range of Linux, 32768 to 60999 (ip(7))


def loopback_address(node: int) -> str:
    """An address of its own for each simulated node, from 127.0.0.1 on."""
    return f"127.0.{node // 253}.{1 + node % 253}"


def reserve_port(seed: str) -> tuple[int, socket.socket]:
    """A free port, and a socket that keeps other runs of this machine off it while it is open.

    Raises BackendError if 500 ports in a row are taken.
    """
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0orchestrate-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
            return port, mark
        except OSError:
            mark.close()
    raise BackendError(f"no free port among 500 between {PORTS[0]} and {PORTS[-1]}")


@dataclass
class Supervisor:
    """The supervisor of the run in `run_dir`; `workdir` is the user's folder."""

    run_dir: Path
    workdir: str
    launch: Launch
    record: Record
    cancelled: bool = False
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def note(
        self, state: State, reason: str = "", attempt: int | None = None, drained: bool = True
    ) -> None:
        """Record a change of state. A full disk does not end the run: the next change is tried."""
        number = self.record.attempt if attempt is None else attempt
        self.record = replace(
            self.record, state=state.value, reason=reason, attempt=number, drained=drained
        )
        say(f"{state.value}: attempt {number}: {reason}")
        try:
            self.record.write(self.run_dir)
        except OSError as error:
            say(f"cannot write the record: {error}")

    def run(self) -> State:
        """Run attempts until a final state, and return that."""
        began, pause, is_drained = time.monotonic(), 0.0, True
        for _ in range(1 + self.launch.failures + self.launch.requeues):
            self._rest(pause)
            if self.cancelled:
                break
            started = time.monotonic()
            ended = self.run_attempt()
            self.record = replace(self.record, ended=(*self.record.ended, ended))
            pause = pause_s(pause, time.monotonic() - started)
            run_s = time.monotonic() - began + pause
            state, reason = next_state(self.record.ended, self.launch, run_s)
            if self.cancelled and state is not State.DONE:
                # Before an attempt was claimed there was nothing that could be lost.
                is_drained = ended.code == contract.EXIT_REQUEUE or ended.attempt == 0
                break
            if state is State.RESTARTING and pause:
                reason += f"; next attempt in {pause:g} s"
            self.note(state, reason)
            if state.is_final:
                return state
        last = self.record.ended[-1].reason if self.record.ended else "nothing had started"
        self.note(State.CANCELLED, last, drained=is_drained)
        return State.CANCELLED

    def _rest(self, pause: float) -> None:
        """Wait before the next attempt; a cancel ends the wait at once."""
        limit = time.monotonic() + pause
        while time.monotonic() < limit and not self.cancelled:
            time.sleep(TICK_S)

    def run_attempt(self) -> Ended:
        """Start all nodes, see them end, and leave nothing of them running."""
        paths = RunPaths(self.run_dir)
        before, fault = paths.newest_attempt(), ""
        try:
            with ExitStack() as stack:
                self._start_nodes(stack)
                self._follow_nodes(before)
        except (OSError, BackendError) as error:  # a full disk, no process or no port left
            fault = f"the nodes could not be started or followed: {error}"
        finally:
            left = processes.end_descendants(os.getpid(), END_TIMEOUT_S)
        if left:
            say(f"could not end: {left}")
        number = paths.newest_attempt()
        return self._ended(number if number > before else 0, fault)

    def _ended(self, number: int, fault: str) -> Ended:
        """How the attempt `number` ended, 0 for one that no node has claimed."""
        if RunPaths(self.run_dir).done.exists():
            # What fails after rank 0 has marked the run as finished does not undo that.
            code = contract.EXIT_DONE
        elif fault:
            return Ended(number, contract.EXIT_FAILED, fault)
        else:
            code = gravest([node.returncode for node in self.nodes])
        return Ended(number, code, self._reason(number, code))

    def _start_nodes(self, stack: ExitStack) -> None:
        token = secrets.token_hex(8)
        port, mark = reserve_port(f"{self.run_dir} {token}")
        stack.enter_context(mark)
        logs = self.run_dir / contract.LOGS_DIR
        logs.mkdir(exist_ok=True)
        self.nodes = []
        for node in range(self.launch.num_nodes):
            log = stack.enter_context((logs / f"node-{node}.log").open("ab"))
            environment = os.environ | self._variables(node, port, f"{self.launch.name}-{token}")
            self.nodes.append(
                subprocess.Popen(
                    self._command(node),
                    cwd=self.run_dir,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _command(self, node: int) -> list[str]:
        """One node of the rendered script, in a form that dies with this process."""
        guard = [sys.executable, "-I", "-S", str(NODE_PY), "--guard", str(os.getpid())]
        return [*guard, "bash", str(self.run_dir / contract.RENDERED_DIR / "node.sh"), str(node)]

    def _variables(self, node: int, port: int, rendezvous_id: str) -> dict[str, str]:
        return {
            contract.ENV_RUN_DIR: str(self.run_dir),
            contract.ENV_WORKDIR: self.workdir,
            "ORCHESTRATE_PYTHON": sys.executable,
            "ORCHESTRATE_NODE_PY": str(NODE_PY),
            "ORCHESTRATE_ENTRY": str(ENTRY),
            "ORCHESTRATE_HEAD": loopback_address(0),
            "ORCHESTRATE_ADDRESS": loopback_address(node),
            "ORCHESTRATE_PORT": str(port),
            "ORCHESTRATE_ID": rendezvous_id,
        }

    def _follow_nodes(self, before: int) -> None:
        """Return when every node has ended, by itself or, past a limit, by SIGKILL."""
        limit, is_told = float("inf"), False
        paths = RunPaths(self.run_dir)
        while any(node.poll() is None for node in self.nodes):
            if self.cancelled and not is_told:
                is_told, limit = True, self._tell_nodes()
            if limit == float("inf") and any(node.poll() is not None for node in self.nodes):
                limit = time.monotonic() + LEAVE_GRACE_S
            if self.record.state != State.RUNNING.value and paths.newest_attempt() > before:
                self.note(State.RUNNING, attempt=paths.newest_attempt())
            if time.monotonic() > limit:
                self._kill_nodes()
            time.sleep(TICK_S)

    def _tell_nodes(self) -> float:
        """Ask the nodes to drain; the time by which they must have ended."""
        for node in self.nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
        grace = LocalRunStore(self.run_dir).tail(contract.GRACE_FILE, 0)
        limit_s = contract.drain_limit_s(self.launch.shutdown_timeout_s, grace)
        return time.monotonic() + limit_s + LEAVE_GRACE_S

    def _kill_nodes(self) -> None:
        for node in self.nodes:
            node.kill()

    def _reason(self, number: int, code: int) -> str:
        """Why the attempt ended, in node 0's words where it left some."""
        try:
            end = json.loads(RunPaths(self.run_dir).end(number).read_bytes())
            return str(end["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        name = contract.EXIT_NAMES[code]
        return f"{name}: the nodes left with {[node.returncode for node in self.nodes]}; see logs/"


def say(text: str) -> None:
    """Write a line into supervisor.log, if there is space for it."""
    with suppress(OSError):
        print(text, flush=True)


def detach() -> int:
    """Fork; the parent leaves with 0 once a byte is written to the pipe that the child gets, and
    with 1 if the child ends before. So whoever started this waits for no longer than it takes."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os._exit(0 if os.read(reader, 1) else 1)
    os.close(reader)
    return writer


def main(argv: list[str]) -> int:
    """RUN_DIR WORKDIR LOCK_FD: the lock is held for as long as this process lives."""
    run_dir, workdir, lock = Path(argv[0]), argv[1], int(argv[2])
    os.set_inheritable(lock, False)
    ready = detach()
    supervisor = _take_over(run_dir, workdir)
    if supervisor is None:
        return 1
    os.write(ready, b"1")
    os.close(ready)
    supervisor.run()
    return 0


def look_after(argv: list[str]) -> int:
    """RUN_DIR WORKDIR: an element of a sweep, not detached, without a lock of its own."""
    supervisor = _take_over(Path(argv[0]), argv[1])
    if supervisor is None:
        return 1
    # One that was cancelled while it waited may be started at this very moment.
    supervisor.cancelled |= (supervisor.run_dir / CANCEL_FILE).exists()
    supervisor.run()
    return 0


def _take_over(run_dir: Path, workdir: str) -> Supervisor | None:
    """A supervisor with its record written; None where that cannot be done: nobody could follow
    or cancel it. What is wrong has been said."""
    launch = Launch.read(run_dir / contract.RENDERED_DIR / "launch.json")
    processes.become_subreaper()
    supervisor = Supervisor(run_dir, workdir, launch, Record.of_this_process())
    take_signals(supervisor)
    number = RunPaths(run_dir).newest_attempt()
    supervisor.note(State.PENDING, "starting the nodes", attempt=number)
    return supervisor if Record.read(run_dir) == supervisor.record else None


class Cancellable(Protocol):
    cancelled: bool


def take_signals(target: Cancellable) -> None:
    """SIGTERM cancels; the end of a terminal means nothing."""

    def cancel(_number: int, _frame: object) -> None:
        target.cancelled = True

    signal.signal(signal.SIGTERM, cancel)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
