"""Starts one node of a run: the roll call of all nodes, torchrun, its end and the exit code.

One file with the standard library only and no import of its neighbours, so that it travels with
any program. The batch script, the container or the local supervisor starts it once per node:

    node.py --run-dir D --nnodes N --node-rank R ... -- PROGRAM ARGUMENT...

Node 0 listens, the others report to it. When all are there node 0 claims the attempt and says
"go"; each node then starts torchrun. The connections stay open: a node that is lost ends the
attempt on all others, and all leave with the one code that node 0 decided (docs/contract.md).

Two further forms are used by this file and the local supervisor only:
    node.py --guard PARENT_PID COMMAND...           runs a command that dies with its parent
    node.py --rank ATTEMPT_DIR WORKDIR PROGRAM...   runs one rank: it dies with torchrun, logs apart
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import ipaddress
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, EXIT_CONFIGURATION, EXIT_HANG = 0, 1, 75, 78, 79
KILL_GRACE_S = 5.0  # from SIGTERM to torchrun to SIGKILL, once the attempt is lost
FAILURE_GRACE_S = 30.0  # for torchrun to end by itself after one of its ranks reported an error
HELLO_TIMEOUT_S = 10.0  # a connection that has not said who it is by then is dropped
TICK_S = 0.1
LINE_LIMIT = 65536  # bytes of one message
PORTS = range(20000, 32000)  # below the ephemeral range of Linux, 32768 to 60999 (ip(7))
AGENT_PID = "ORCHESTRATE_AGENT_PID"  # from the guard to the ranks' shim; the program never sees it
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STALE_PREFIXES = ("PET_", "TORCHELASTIC_", "GROUP_", "ROLE_")
STALE_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Message = dict[str, Any]
T = TypeVar("T")


class Leave(Exception):
    """Ends this node with an exit code and a reason that is printed without a traceback."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclasses.dataclass(frozen=True)
class Result:
    """How torchrun ended on one node; `code` is its own, negative for a signal."""

    node: int
    host: str
    code: int
    kind: str = ""  # "configuration" or "failure" where a rank said so
    rank: int | None = None
    message: str = ""
    at: float = 0.0  # when its first rank ended, in seconds since 1970


class Signals:
    """Remembers the signal that asked this node to stop."""

    def __init__(self) -> None:
        self.received = ""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.received = signal.Signals(number).name

    def check(self) -> None:
        """Raises Leave where there is nothing yet that would have to be drained."""
        if self.received:
            raise Leave(EXIT_REQUEUE, f"{self.received} before the attempt had started")


# --- files -------------------------------------------------------------------------------------


def write_json(path: Path, value: Message) -> None:
    """Writes a file aside and renames it: a reader sees all of it or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(value) + "\n", encoding="utf-8")
    os.replace(aside, path)


def read_json(path: Path) -> Message:
    """The object in a small JSON file, or {} if there is none that can be read."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(LINE_LIMIT))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def claim_attempt(run_dir: Path, job_id: str) -> int:
    """The number of the new attempt; mkdir is what claims it, so two nodes never get the same."""
    attempts = run_dir / "attempts"
    attempts.mkdir(exist_ok=True)
    for _ in range(100):
        number = 1 + max((int(p.name) for p in attempts.iterdir() if p.name.isdecimal()), default=0)
        try:
            (attempts / str(number)).mkdir()
        except FileExistsError:
            continue
        for folder in ("logs", "errors"):
            (attempts / str(number) / folder).mkdir()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        owner = {"job": job_id, "host": socket.gethostname(), "boot_id": boot_id}
        write_json(attempts / str(number) / "owner.json", {**owner, "pid": os.getpid()})
        return number
    raise Leave(EXIT_FAILED, f"{attempts}: others claim attempts faster than this node can")


# --- processes ---------------------------------------------------------------------------------


def prctl(option: int, value: int) -> None:
    """Calls prctl(2); raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def stat_of(pid: int) -> tuple[int, int] | None:
    """(parent's pid, start time in clock ticks since boot), None once it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold blanks and brackets
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


def descendants(root: int) -> list[tuple[int, int]]:
    """(pid, start time) of every living process below `root`."""
    stats = {int(p): s for p in os.listdir("/proc") if p.isdecimal() and (s := stat_of(int(p)))}
    below, found = {root}, {root}
    while found:
        found = {pid for pid, (parent, _) in stats.items() if parent in found} - below
        below |= found
    return [(pid, stats[pid][1]) for pid in below - {root} if pid in stats]


def end_descendants(timeout_s: float = 10.0) -> None:
    """Kills what torchrun has left behind; as subreaper this process is the parent of all that."""
    deadline = time.monotonic() + timeout_s
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid, start in left:
            if (now := stat_of(pid)) and now[1] == start:
                kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)
    if left:
        say(f"could not end {len(left)} processes: {sorted(pid for pid, _ in left)}")


def kill(pid: int, number: int) -> None:
    """Sends a signal; a process that is gone already is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def reap() -> None:
    """Collects orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def die_with(parent: int) -> None:
    """From now on this process is killed when its parent ends; leaves if that is so already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(EXIT_FAILED)


def guard(parent: int, command: list[str]) -> NoReturn:
    """Becomes `command`, which dies with its parent."""
    die_with(parent)
    os.environ[AGENT_PID] = str(os.getpid())
    os.execvp(command[0], command)


def rank_shim(attempt_dir: Path, workdir: str, program: list[str]) -> NoReturn:
    """Becomes one rank of the program, its output in the rank's log."""
    die_with(int(os.environ.pop(AGENT_PID)))
    rank = int(os.environ["RANK"])
    log = os.open(log_path(attempt_dir, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        os.chdir(workdir)
        os.execvp(program[0], program)
    except OSError as error:
        message = f"cannot start {program[0]!r} in {workdir!r}: {error}"
        fault = {"version": 1, "kind": "configuration", "rank": rank, "message": message}
        write_json(error_path(attempt_dir, rank), {**fault, "host": socket.gethostname()})
        sys.exit(message)


def log_path(attempt_dir: Path, rank: int) -> Path:
    return attempt_dir / "logs" / f"rank-{rank:05}.log"


def error_path(attempt_dir: Path, rank: int) -> Path:
    return attempt_dir / "errors" / f"rank-{rank:05}.json"


# --- network -----------------------------------------------------------------------------------


class Link:
    """A connection that carries JSON objects, one a line, with limits on length and time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.buffer, self.node = sock, b"", -1
        sock.settimeout(HELLO_TIMEOUT_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        """Sends; a peer that is gone is noticed by the next receive."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self) -> list[Message] | None:
        """The messages that have arrived; None once the connection is closed or talks nonsense."""
        try:
            data = self.sock.recv(LINE_LIMIT)
            *lines, self.buffer = (self.buffer + data).split(b"\n")
            messages = [json.loads(line) for line in lines]
        except (OSError, ValueError, RecursionError):
            return None
        sane = data and len(self.buffer) < LINE_LIMIT and all(isinstance(m, dict) for m in messages)
        return messages if sane else None


class Head:
    """Node 0's side of the roll call."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.nodes, self.pending = args, {0: args.host}, dict[Link, float]()
        self.links, self.refused = dict[int, Link](), list[str]()
        try:
            family = socket.getaddrinfo(args.address, args.port, type=socket.SOCK_STREAM)[0][0]
            where = (args.address, args.port)
            self.listener = socket.create_server(where, family=family, backlog=args.nnodes + 64)
        except OSError as error:
            where_text = f"{args.address} port {args.port}"
            raise Leave(EXIT_FAILED, f"node 0 cannot listen on {where_text}: {error}") from None
        self.listener.settimeout(HELLO_TIMEOUT_S)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def gather(self, signals: Signals) -> None:
        """Returns when every node has reported; raises Leave that names the missing ones."""
        deadline = time.monotonic() + self.args.start_timeout_s
        while len(self.nodes) < self.args.nnodes:
            signals.check()
            if time.monotonic() > deadline:
                raise Leave(EXIT_FAILED, self._missing())
            self.poll()
            for link in [k for k, born in self.pending.items() if time.monotonic() > born]:
                self._drop(link)

    def poll(self) -> list[tuple[int, Message | None]]:
        """What nodes have said since the last call; None for a node that is lost."""
        said: list[tuple[int, Message | None]] = []
        for key, _ in self.selector.select(TICK_S):
            if not isinstance(key.fileobj, Link):
                self._accept()
                continue
            link = key.fileobj
            messages = link.receive()
            if link.node < 0 and messages:
                self._hello(link, messages[0])
            said += [(link.node, message) for message in messages or () if link.node >= 0]
            if messages is None:
                said.append((link.node, None))
                self._drop(link)
        return said

    def close_roll_call(self) -> None:
        """Late comers are turned away from now on."""
        self.selector.unregister(self.listener)
        self.listener.close()
        for link in list(self.pending):
            self._drop(link)

    def broadcast(self, message: Message) -> None:
        for link in self.links.values():
            link.send(message)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        link = Link(sock)
        self.selector.register(link, selectors.EVENT_READ)
        self.pending[link] = time.monotonic() + HELLO_TIMEOUT_S
        if len(self.pending) > 2 * self.args.nnodes + 64:
            self._drop(next(iter(self.pending)))

    def _hello(self, link: Link, hello: Message) -> None:
        node, host = hello.get("node_rank"), str(hello.get("host"))
        if reason := self._fault(hello):
            self.refused.append(f"node {node} ({host}): {reason}")
            say(f"refused node {node} ({host}): {reason}")
            link.send({"refused": reason})
            self._drop(link)
            return
        link.node = int(hello["node_rank"])
        self.links[link.node], self.nodes[link.node] = link, host
        del self.pending[link]

    def _fault(self, hello: Message) -> str:
        """Why this node may not join, or ""."""
        if hello.get("id") != self.args.id:
            return "it belongs to another job or attempt (its --id differs)"
        for key in ("nnodes", "nproc"):
            if hello.get(key) != getattr(self.args, key):
                return f"{key} is {hello.get(key)!r} there and {getattr(self.args, key)} on node 0"
        node = hello.get("node_rank")
        if not isinstance(node, int) or not 0 < node < self.args.nnodes:
            return f"its node rank {node!r} is not among 1 to {self.args.nnodes - 1}"
        if node in self.nodes:
            return f"node rank {node} has been taken by {self.nodes[node]}"
        return ""

    def _drop(self, link: Link) -> None:
        self.selector.unregister(link)
        link.sock.close()
        self.pending.pop(link, None)
        if self.links.get(link.node) is link:
            del self.links[link.node], self.nodes[link.node]

    def _missing(self) -> str:
        count, here = self.args.nnodes, [f"node {n} ({h})" for n, h in sorted(self.nodes.items())]
        missing = [str(n) for n in range(count) if n not in self.nodes]
        shown = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" * (len(missing) > 20))
        text = f"node {shown} of {count} did not report within {self.args.start_timeout_s:g} s"
        text += f"; here: {', '.join(here[:20])}"
        return text + (f"; refused: {'; '.join(self.refused[:5])}" if self.refused else "")


def join(args: argparse.Namespace, signals: Signals) -> tuple[Link, Message]:
    """Reports to node 0 and waits for its word; raises Leave."""
    deadline = time.monotonic() + args.start_timeout_s
    hello = {key: getattr(args, key) for key in ("id", "node_rank", "nnodes", "nproc", "host")}
    delay_s, last = 0.1, "no answer"
    while time.monotonic() < deadline:
        leave_if_done(args)
        signals.check()
        try:
            link = Link(socket.create_connection((args.head, args.port), timeout=5))
            link.send({**hello, "address": args.address})
            # Node 0 names the missing nodes when its time is up: it may have begun a little later.
            if go := await_go(link, signals, deadline + 2 * HELLO_TIMEOUT_S):
                return link, go
            last = "it closed the connection before the attempt had started"
        except OSError as error:
            last = str(error)
        time.sleep(delay_s)
        delay_s = min(2.0, delay_s * 1.5)
    where = f"node 0 at {args.head} port {args.port}"
    raise Leave(EXIT_FAILED, f"no go from {where} within {args.start_timeout_s:g} s: {last}")


def await_go(link: Link, signals: Signals, deadline: float) -> Message:
    """Node 0's go, {} if the connection broke before; raises Leave when node 0 says no."""
    for message in follow(link, deadline):
        signals.check()
        if message is None:
            break
        if "refused" in message:
            raise Leave(EXIT_FAILED, f"node 0 refused this node: {message['refused']}")
        if "end" in message:
            raise Leave(int(message["end"]), str(message.get("reason")))
        if "go" in message:
            return dict(message["go"])
    link.sock.close()
    return {}


def follow(link: Link, deadline: float) -> Iterator[Message | None]:
    """Messages as they come, {} at least once a tick, None when the link is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            messages = link.receive() if selector.select(TICK_S) else []
            yield from messages or ()
            if messages is None:
                yield None
                return
            yield {}


def reserve_port(seed: str) -> tuple[int, socket.socket]:
    """A free port, and a socket that keeps other jobs of this machine off it while it is open."""
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0orchestrate-port-{port}")
            with socket.socket(socket.AF_INET) as probe:
                probe.bind(("", port))
            return port, mark
        except OSError:
            mark.close()
    raise Leave(EXIT_FAILED, f"no free port among 500 between {PORTS[0]} and {PORTS[-1]}")


# --- torchrun ----------------------------------------------------------------------------------


class Agent:
    """torchrun on this node and the ranks below it. Only the main thread may start it: a process
    that dies with its parent dies with the thread that made it."""

    def __init__(self, args: argparse.Namespace, go: Message, signals: Signals) -> None:
        self.args, self.signals, self.attempt = args, signals, int(go["attempt"])
        self.dir = Path(args.run_dir) / "attempts" / str(self.attempt)
        self.ranks = range(args.node_rank * args.nproc, (args.node_rank + 1) * args.nproc)
        self.term_at, self.kill_at, self.drain_at = float("inf"), float("inf"), float("inf")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        command = guarded(agent_command(args, go, self.dir))
        # Its folder is not the user's: a folder "torch" there would be imported. A session of its
        # own keeps a terminal's signals away: they reach it through this process.
        self.process = subprocess.Popen(
            command,
            cwd=self.dir,
            env=environment(args, self.attempt),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.watch = RankWatch(self.process.pid, self.ranks)
        self.watch.start()

    def stop(self, reason: str) -> None:
        """Ends torchrun: SIGTERM now, SIGKILL in a few seconds."""
        if self.term_at == float("inf"):
            say(f"ending torchrun: {reason}")
        self.term_at = min(self.term_at, time.monotonic())

    def poll(self) -> Result | None:
        """Does what is due; the result once torchrun and all below it are gone."""
        code = self.process.poll()
        if code is not None:
            self.watch.finish()
            end_descendants()
            return self._result(code)
        now = time.monotonic()
        self._drain(now)
        if self.kill_at < now:
            self.process.kill()
        elif self.term_at < now and self.kill_at == float("inf"):
            self.process.terminate()
            self.kill_at = now + KILL_GRACE_S
        return None

    def _drain(self, now: float) -> None:
        drain = self.dir / "drain"
        if self.drain_at == float("inf") and (self.signals.received or drain.exists()):
            drain.touch()
            say(f"draining attempt {self.attempt} {self.signals.received}")
            self.drain_at = now + self.args.shutdown_timeout_s
        if self.drain_at < now:
            self.stop(f"not drained within {self.args.shutdown_timeout_s:g} s")
        elif self.term_at == float("inf") and self._errors():
            self.term_at = now + FAILURE_GRACE_S

    def _errors(self) -> dict[int, Message]:
        return {r: e for r in self.ranks if (e := read_json(error_path(self.dir, r)))}

    def _result(self, code: int) -> Result:
        errors = self._errors()
        faults = [r for r, e in errors.items() if e.get("kind") == "configuration"]
        first, at = self.watch.first or (next(iter(errors), None), time.time())
        rank = faults[0] if faults else first
        error = errors.get(rank, {}) if rank is not None else {}
        text, kind = str(error.get("message", ""))[:2000], str(error.get("kind", ""))[:20]
        node, host = self.args.node_rank, self.args.host
        return Result(node, host, code, kind, rank if code else None, text, at)


class RankWatch(threading.Thread):
    """Notes which rank ends first: torchrun does not say, and the others fail for its sake."""

    def __init__(self, agent_pid: int, ranks: range) -> None:
        super().__init__(daemon=True)
        self.agent_pid, self.ranks, self.ended = agent_pid, ranks, threading.Event()
        self.first: tuple[int | None, float] | None = None  # rank, seconds since 1970

    def run(self) -> None:
        found: dict[int, int] = {}
        try:
            while len(found) < len(self.ranks) and not self.ended.wait(TICK_S / 4):
                self._find(found)
            if len(found) == len(self.ranks):
                self._await_first(found)
        except OSError:
            return  # a kernel before 5.3 has no pidfd, and a rank may be gone before it was found
        finally:
            for descriptor in found.values():
                os.close(descriptor)

    def finish(self) -> None:
        self.ended.set()
        self.join(timeout=HELLO_TIMEOUT_S)

    def _find(self, found: dict[int, int]) -> None:
        for pid, _ in descendants(self.agent_pid):
            rank = environment_of(pid).get("RANK", "")
            if rank.isdecimal() and int(rank) in self.ranks and int(rank) not in found:
                found[int(rank)] = os.pidfd_open(pid)

    def _await_first(self, found: dict[int, int]) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, descriptor in found.items():
                selector.register(descriptor, selectors.EVENT_READ, rank)
            while found and not self.first:
                gone = [key.data for key, _ in selector.select(TICK_S)]
                if gone:
                    self.first = (min(gone), time.time())
                elif self.ended.is_set():
                    return


def guarded(command: list[str]) -> list[str]:
    """The command in a form that dies with this process."""
    me = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*me, "--guard", str(os.getpid()), *command]


def agent_command(args: argparse.Namespace, go: Message, attempt_dir: Path) -> list[str]:
    """torchrun for a world of fixed size: static rendezvous, no restart in place."""
    address = str(go["master_addr"])
    options = {
        "nnodes": args.nnodes,
        "nproc-per-node": args.nproc,
        "node-rank": args.node_rank,
        "rdzv-backend": "static",
        "rdzv-id": f"{args.id}-{go['attempt']}",
        "master-addr": f"[{address}]" if ":" in address else address,
        "master-port": go["master_port"],
        "max-restarts": 0,
        # A signal that torchrun forwards starts its clock to SIGKILL: no shorter than ours.
        "shutdown-timeout": max(1, int(args.shutdown_timeout_s)),
        "log-dir": os.devnull,
    }
    rank = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--rank"]
    rank += [str(attempt_dir), args.workdir, *args.program]
    run = [sys.executable, "-m", args.agent, *(f"--{k}={v}" for k, v in options.items())]
    return [*run, "--no-python", *rank]


def environment(args: argparse.Namespace, attempt: int) -> dict[str, str]:
    """This process's environment without an outer launcher's variables, with the contract's."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(STALE_PREFIXES) and name not in STALE_NAMES
    }
    return keep | {
        "ORCHESTRATE_RUN_DIR": args.run_dir,
        "ORCHESTRATE_ATTEMPT": str(attempt),
        "ORCHESTRATE_CHECKPOINT_DIR": os.path.join(args.run_dir, "checkpoints"),
        "ORCHESTRATE_WORKDIR": args.workdir,
    }


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with, {} where it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in os.fsdecode(data).split("\0"))
    return {name: value for name, _, value in pairs}


class Echo(threading.Thread):
    """Copies the logs of this node's ranks to standard output, each line behind its rank."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(daemon=True)
        self.logs = {rank: log_path(agent.dir, rank) for rank in agent.ranks}
        self.offsets = dict.fromkeys(self.logs, 0)
        self.host, self.ended = agent.args.host, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(TICK_S):
            self.copy()
        self.copy(last=True)

    def copy(self, last: bool = False) -> None:
        for rank, path in self.logs.items():
            try:
                with path.open("rb") as file:
                    file.seek(self.offsets[rank])
                    data = file.read()
            except OSError:
                continue
            whole = data if last else data[: data.rfind(b"\n") + 1]
            self.offsets[rank] += len(whole)
            prefix = f"[rank {rank} {self.host}] ".encode()
            sys.stdout.buffer.write(b"".join(prefix + k + b"\n" for k in whole.splitlines()))
        sys.stdout.flush()

    def finish(self) -> None:
        self.ended.set()
        self.join(timeout=HELLO_TIMEOUT_S)


# --- one attempt -------------------------------------------------------------------------------


def decide(results: list[Result], outcome: str) -> Message:
    """What end.json says: code, reason, and who was first at fault. The code is the gravest:
    configuration, failed, requeue, done."""
    results = sorted(results, key=lambda r: r.at)
    faulty = [r for r in results if r.kind == "configuration"] or [r for r in results if r.code]
    code = {"done": EXIT_DONE, "drained": EXIT_REQUEUE}.get(outcome, EXIT_FAILED)
    reason = outcome or "the ranks ended with 0 but rank 0 left no outcome.json"
    if not faulty:
        return {"version": 1, "code": code, "reason": reason, "node": None, "rank": None}
    first = faulty[0]
    code = EXIT_CONFIGURATION if first.kind == "configuration" else EXIT_FAILED
    how = f"signal {-first.code}" if first.code < 0 else f"code {first.code}"
    who = f"node {first.node} ({first.host})"
    reason = first.message or f"torchrun ended with {how}"
    if first.rank is not None:
        who = f"rank {first.rank} on {who}"
        reason = first.message or "it ended first"
    reason = f"{who}: {reason}"
    return {"version": 1, "code": code, "reason": reason, "node": first.node, "rank": first.rank}


def run_head(args: argparse.Namespace, signals: Signals) -> int:
    """Node 0's life; the exit code of all nodes."""
    head = Head(args)
    try:
        head.gather(signals)
        leave_if_done(args)
        attempt = claim_attempt(Path(args.run_dir), args.id)
        port, mark = reserve_port(f"{args.id}-{attempt}")
        head.close_roll_call()
        go = {"attempt": attempt, "master_addr": args.head, "master_port": port}
        say(f"attempt {attempt}: {args.nnodes} nodes are here: {', '.join(head.nodes.values())}")
        head.broadcast({"go": go})
        with mark:
            agent = Agent(args, go, signals)
            results = echoed(args, agent, lambda: collect(head, agent))
    except Leave as leave:
        head.broadcast({"end": leave.code, "reason": leave.reason})
        raise
    ending = decide(results, str(read_json(agent.dir / "outcome.json").get("outcome", "")))
    write_json(agent.dir / "end.json", ending)
    head.broadcast({"end": ending["code"], "reason": ending["reason"]})
    say(f"attempt {attempt} ended with {ending['code']}: {ending['reason']}")
    return int(ending["code"])


def collect(head: Head, agent: Agent) -> list[Result]:
    """The results of all nodes, in the order in which they came; the first bad one ends all."""
    results: dict[int, Result] = {}
    limit, stopped = float("inf"), False
    while len(results) < head.args.nnodes and time.monotonic() < limit:
        host = dict(head.nodes)
        for node, message in head.poll():
            if message is None:
                text = "the node was lost"
                lost = Result(node, host.get(node, "?"), 1, "", None, text, time.time())
                results.setdefault(node, lost)
            elif "result" in message:
                results.setdefault(node, Result(**message["result"]))
        if 0 not in results and (own := agent.poll()):
            results[0] = own
        if results and limit == float("inf"):
            limit = time.monotonic() + agent.args.shutdown_timeout_s + FAILURE_GRACE_S
        if not stopped and (bad := next((r for r in results.values() if r.code), None)):
            stopped, limit = True, time.monotonic() + FAILURE_GRACE_S
            agent.stop(f"node {bad.node} failed")
            head.broadcast({"stop": f"node {bad.node} ({bad.host}) failed"})
    late = [n for n in range(head.args.nnodes) if n not in results]
    message_text = "it did not end in time after the others"
    hosts, now = head.nodes, time.time()
    lost_nodes = [Result(n, hosts.get(n, "?"), 1, "", None, message_text, now) for n in late]
    return [*results.values(), *lost_nodes]


def run_member(args: argparse.Namespace, signals: Signals) -> int:
    """The life of any other node; the exit code that node 0 decided."""
    link, go = join(args, signals)
    agent = Agent(args, go, signals)
    return echoed(args, agent, lambda: take_part(link, agent))


def take_part(link: Link, agent: Agent) -> int:
    """Follows node 0 until it says "end" or is lost, with torchrun ended in each case."""
    result, reason, code, limit = None, "", EXIT_FAILED, float("inf")
    for message in follow(link, float("inf")):
        if message is None or "end" in message:
            code = int(message["end"]) if message else EXIT_FAILED
            reason = str(message.get("reason")) if message else "node 0 was lost"
            break
        if "stop" in message:
            agent.stop(str(message["stop"]))
        if result is None and (result := agent.poll()):
            link.send({"result": dataclasses.asdict(result)})
            limit = time.monotonic() + agent.args.shutdown_timeout_s + 2 * FAILURE_GRACE_S
        if time.monotonic() > limit:
            reason = "node 0 decided nothing in time"
            break
    agent.stop(reason)
    limit = time.monotonic() + FAILURE_GRACE_S
    while result is None and time.monotonic() < limit:
        time.sleep(TICK_S)
        result = agent.poll()
    say(f"leaving with {code}: {reason}")
    return code


def echoed(args: argparse.Namespace, agent: Agent, live: Callable[[], T]) -> T:
    """Calls `live` while the ranks' logs are copied to standard output, if that is wanted."""
    echo = Echo(agent)
    if args.echo:
        echo.start()
    try:
        return live()
    finally:
        if args.echo:
            echo.finish()


def leave_if_done(args: argparse.Namespace) -> None:
    if (Path(args.run_dir) / "DONE").exists():
        raise Leave(EXIT_DONE, "the run is finished (DONE is there): nothing to start")


# --- command line ------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Leave(EXIT_CONFIGURATION, f"node.py: {message}")


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, checked; raises Leave."""
    parser = Parser(prog="node.py", allow_abbrev=False, description=__doc__)
    for name in ("run-dir", "head", "address", "id", "workdir"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("nnodes", "node-rank", "port"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--nproc-per-node", required=True, type=int, dest="nproc")
    for name in ("start-timeout-s", "shutdown-timeout-s"):
        parser.add_argument(f"--{name}", required=True, type=float)
    parser.add_argument("--allow-loopback", action="store_true", help="all nodes on one machine")
    parser.add_argument("--echo", action="store_true", help="copy the ranks' logs to stdout")
    parser.add_argument("--agent", default="torch.distributed.run", help="module with its options")
    split = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:split])
    args.program, args.host = argv[split + 1 :], socket.gethostname()
    if fault := check(args):
        raise Leave(EXIT_CONFIGURATION, f"node.py: {fault}")
    return args


def check(args: argparse.Namespace) -> str:
    """What is wrong with the arguments, or ""."""
    if not args.program:
        return 'no program: give it after "--"'
    if args.nnodes < 1 or args.nproc < 1 or not 0 <= args.node_rank < args.nnodes:
        return f"no such place: node {args.node_rank} of {args.nnodes} with {args.nproc} ranks"
    if not 0 < args.port < 65536 or args.start_timeout_s <= 0 or args.shutdown_timeout_s <= 0:
        return "--port must be 1 to 65535 and the timeouts above 0 s"
    if not os.path.isabs(args.run_dir) or not os.path.isdir(args.run_dir):
        return f"--run-dir {args.run_dir!r} must be a folder that is there, absolute"
    if args.nnodes > 1 and not args.allow_loopback:
        for name in (args.head, args.address):
            if is_loopback(name):
                return f"{name} is a loopback address: no other machine can reach it"
    return ""


def is_loopback(name: str) -> bool:
    """Whether a name means this machine only, as far as is known now."""
    try:
        address = str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        return False
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def say(text: str) -> None:
    print(f"[node] {text}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    if argv[:1] == ["--guard"]:
        guard(int(argv[1]), argv[2:])
    if argv[:1] == ["--rank"]:
        rank_shim(Path(argv[1]), argv[2], argv[3:])
    try:
        signals, args = Signals(), parse(argv)
        leave_if_done(args)
        return run_head(args, signals) if args.node_rank == 0 else run_member(args, signals)
    except Leave as leave:
        say(leave.reason)
        return leave.code
    except OSError as error:  # a folder that cannot be written, no memory for a process
        say(f"node.py: {error}")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
