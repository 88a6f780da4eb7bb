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
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import processes
from orchestrator.backends.attempts import gravest, next_state, pause_s
from orchestrator.backends.base import State
from orchestrator.backends.detached import detach, take_signals
from orchestrator.backends.record import Ended, Launch, Record
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.backends.simulated import largest, loopback_address, nodes_down, reserve_port
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


@dataclass
class Supervisor:
    """The supervisor of the run in `run_dir`; `workdir` is the user's folder.

    nodes: node.py of each node of the attempt, by the node's number, those that were `lost` not.
    """

    run_dir: Path
    workdir: str
    launch: Launch
    record: Record
    cancelled: bool = False
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

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
        self.began, pause, is_drained = time.monotonic(), 0.0, True
        for _ in range(1 + self.launch.failures + self.launch.requeues):
            self._rest(pause)
            if self.cancelled:
                break
            started = time.monotonic()
            ended = self.run_attempt()
            self.record = replace(self.record, ended=(*self.record.ended, ended))
            pause = pause_s(pause, time.monotonic() - started)
            run_s = time.monotonic() - self.began + pause
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
        numbers = self._await_nodes()
        if not numbers:
            limit_s = self.launch.start_timeout_s
            reason = f"{self.record.reason}, for timeouts.start ({limit_s:g} s)"
            return Ended(0, contract.EXIT_FAILED, reason)
        try:
            with ExitStack() as stack:
                self._start_nodes(stack, numbers)
                self._follow_nodes(before)
        except (OSError, BackendError) as error:  # a full disk, no process or no port left
            fault = f"the nodes could not be started or followed: {error}"
        finally:
            left = processes.end_descendants(os.getpid(), END_TIMEOUT_S)
        if left:
            say(f"could not end: {left}")
        number = paths.newest_attempt()
        return self._ended(number if number > before else 0, fault)

    def _await_nodes(self) -> list[int]:
        """The nodes to start: the lowest that are up, as many as go; none after a cancel, or
        where there are too few for `timeouts.start`."""
        limit = time.monotonic() + self.launch.start_timeout_s
        while not self.cancelled:
            up = self._nodes_up()
            if size := largest(self.launch.sizes, len(up)):
                return up[:size]
            needed = f"an attempt needs {self.launch.sizes[0]} nodes, and {len(up)} are up"
            if time.monotonic() > limit:
                break
            if self.record.reason != needed:
                self.note(State(self.record.state), needed)
            time.sleep(TICK_S)
        return []

    def _nodes_up(self) -> list[int]:
        down = nodes_down(self.run_dir)
        return [node for node in range(self.launch.num_nodes) if node not in down]

    def _ended(self, number: int, fault: str) -> Ended:
        """How the attempt `number` ended, 0 for one that no node has claimed."""
        if RunPaths(self.run_dir).done.exists():
            # What fails after rank 0 has marked the run as finished does not undo that.
            code = contract.EXIT_DONE
        elif fault:
            return Ended(number, contract.EXIT_FAILED, fault)
        else:
            code = gravest([node.returncode for node in self.nodes.values()])
        return Ended(number, code, self._reason(number, code), len(self.lost))

    def _start_nodes(self, stack: ExitStack, numbers: list[int]) -> None:
        token = secrets.token_hex(8)
        port, mark = reserve_port(f"{self.run_dir} {token}")
        stack.enter_context(mark)
        logs = self.run_dir / contract.LOGS_DIR
        logs.mkdir(exist_ok=True)
        self.nodes, self.lost = {}, []
        shared = self._variables(numbers, port, f"{self.launch.name}-{token}")
        for rank, node in enumerate(numbers):
            log = stack.enter_context((logs / f"node-{node}.log").open("ab"))
            self.nodes[node] = subprocess.Popen(
                self._command(rank),
                cwd=self.run_dir,
                env=os.environ | shared | {"ORCHESTRATE_ADDRESS": loopback_address(node)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self, rank: int) -> list[str]:
        """One node of the rendered script, in a form that dies with this process."""
        guard = [sys.executable, "-I", "-S", str(NODE_PY), "--guard", str(os.getpid())]
        return [*guard, "bash", str(self.run_dir / contract.RENDERED_DIR / "node.sh"), str(rank)]

    def _variables(self, numbers: list[int], port: int, rendezvous_id: str) -> dict[str, str]:
        return {
            contract.ENV_RUN_DIR: str(self.run_dir),
            contract.ENV_WORKDIR: self.workdir,
            "ORCHESTRATE_PYTHON": sys.executable,
            "ORCHESTRATE_NODE_PY": str(NODE_PY),
            "ORCHESTRATE_ENTRY": str(ENTRY),
            "ORCHESTRATE_NODES": str(len(numbers)),
            # All of these are up: none of them is to be left behind for being slow.
            "ORCHESTRATE_SIZES": str(len(numbers)),
            "ORCHESTRATE_HEAD": loopback_address(numbers[0]),
            "ORCHESTRATE_PORT": str(port),
            "ORCHESTRATE_ID": rendezvous_id,
        }

    def _follow_nodes(self, before: int) -> None:
        """Return when every node has ended, by itself or, past a limit, by SIGKILL."""
        limit, is_told = float("inf"), False
        paths = RunPaths(self.run_dir)
        while any(node.poll() is None for node in self.nodes.values()):
            self._lose_nodes()
            # Before the attempt is claimed the others would wait for a lost node.
            incomplete = bool(self.lost) and paths.newest_attempt() == before
            if not is_told and (self.cancelled or incomplete or self._can_grow()):
                is_told, limit = True, self._tell_nodes()
            ended = [node.poll() is not None for node in self.nodes.values()]
            if limit == float("inf") and any(ended):
                limit = time.monotonic() + LEAVE_GRACE_S
            if self.record.state != State.RUNNING.value and paths.newest_attempt() > before:
                self.note(State.RUNNING, attempt=paths.newest_attempt())
            if time.monotonic() > limit:
                self._kill_nodes()
            time.sleep(TICK_S)

    def _lose_nodes(self) -> None:
        """Kill all that runs on a node that has been taken down, as a power failure would."""
        for number in nodes_down(self.run_dir) & self.nodes.keys():
            process = processes.find(self.nodes[number].pid)
            if process is None or self.nodes[number].poll() is not None:
                continue  # it has ended by itself
            say(f"node {number} is down")
            processes.kill_tree(process, END_TIMEOUT_S)
            self.nodes.pop(number).poll()
            self.lost.append(number)

    def _can_grow(self) -> bool:
        """Whether an attempt that began now would have more nodes than this one has, and may."""
        if largest(self.launch.sizes, len(self._nodes_up())) <= len(self.nodes):
            return False
        asked = (*self.record.ended, Ended(0, contract.EXIT_REQUEUE, ""))
        run_s = time.monotonic() - self.began
        return next_state(asked, self.launch, run_s)[0] is State.RESTARTING

    def _tell_nodes(self) -> float:
        """Ask the nodes to drain; the time by which they must have ended."""
        for node in self.nodes.values():
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
        grace = LocalRunStore(self.run_dir).tail(contract.GRACE_FILE, 0)
        limit_s = contract.drain_limit_s(self.launch.shutdown_timeout_s, grace)
        return time.monotonic() + limit_s + LEAVE_GRACE_S

    def _kill_nodes(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def _reason(self, number: int, code: int) -> str:
        """Why the attempt ended, in node 0's words where it left some."""
        if self.lost and code != contract.EXIT_DONE:
            return f"node {', '.join(map(str, self.lost))} was taken down"
        try:
            end = json.loads(RunPaths(self.run_dir).end(number).read_bytes())
            return str(end["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        name = contract.EXIT_NAMES[code]
        codes = [node.returncode for node in self.nodes.values()]
        return f"{name}: the nodes left with {codes}; see logs/"


def say(text: str) -> None:
    """Write a line into supervisor.log, if there is space for it."""
    with suppress(OSError):
        print(text, flush=True)


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
