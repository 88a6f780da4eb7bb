"""Starts one node of a run: the roll call of all nodes, torchrun, its end and the exit code.

One file with the standard library only and no import of its neighbours, so that it travels with
any program. The batch script, the container or the local supervisor starts it once per node:

    node.py --run-dir D --nnodes N --node-rank R ... -- PROGRAM ARGUMENT...

Node 0 listens, the others report to it. When all are there node 0 claims the attempt and says
"go"; each node then starts torchrun. The connections stay open: a node that is lost ends the
attempt on all others, and all leave with the one code that node 0 decided (docs/contract.md).

With --sizes an attempt may begin with fewer nodes: once there are enough, node 0 waits a grace
for the others, and numbers those that are here anew. One beyond an allowed size waits for the end.

With --repeat-codes-from, as on Kubernetes, nobody else counts how often the run has been started:
node 0 reads it from the run folder, and a code below that number says that no new start is wanted.

What is wrong with a node alone (an interface, a vendor's script, what --preflight names) goes with
its report, so that all end at once and node 0 can say which nodes it was.

With --direct it is started once per rank, as by srun, and starts the program itself: each "node" of
the roll call is then a rank, and what is said of torchrun holds for the program.

Two further forms are used by this file and the local supervisor only:
    node.py --guard PARENT_PID COMMAND...           runs a command that dies with its parent
    node.py --rank ATTEMPT_DIR WORKDIR PROGRAM...   runs one rank: it dies with torchrun, logs apart
"""

from __future__ import annotations

import argparse
import array
import contextlib
import ctypes
import dataclasses
import fcntl
import importlib.util
import ipaddress
import json
import os
import re
import resource
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

EXIT_DONE, EXIT_FAILED, EXIT_REQUEUE, EXIT_CONFIGURATION, EXIT_HANG = 0, 1, 75, 78, 79
KILL_GRACE_S = 5.0  # from SIGTERM to torchrun to SIGKILL, once the attempt is lost
STACKS_S = 2.0  # from asking the processes of a hanging attempt for their stacks to reading them
HANG_GRACE_S = 30.0  # for the ranks of a hanging attempt to report and to end by themselves
PULSE_S = 5.0  # between two looks at whether the ranks' watchdogs run
SILENCE_S = 30.0  # after its time limit, in which a watchdog that runs would have acted
FAILURE_GRACE_S = 30.0  # for torchrun to end by itself after one of its ranks reported an error
JOIN_GRACE_S = 60.0  # for more nodes, once there are enough
HELLO_TIMEOUT_S = 10.0  # a connection that has not said who it is by then is dropped
TIME_LIMIT_MARGIN_S = 30.0  # before the time limit, beyond the shutdown timeout
GRACE_FILE = "grace.json"
NODES_SHOWN = 8  # in a reason that names several
GIVEN_UP_FILE, MISSED_DIR, ALIVE_FILE = "given-up.json", "missed-starts", "alive"
GRACE_FACTOR = 10  # times the shutdown timeout, the longest that grace.json may ask for
TICK_S = 0.1
LINE_LIMIT = 65536  # bytes of one message
# Below the ephemeral range of Linux, 32768 to 60999 (ip(7)), and below the ports of Services that
# Kubernetes has on its nodes, 30000 to 32767 (kubernetes.io, "Service", type NodePort).
PORTS = range(20000, 30000)
# Files of Python's own library and of torch, whose frames do not say where a program is.
LIBRARY = re.compile(r"/lib(64)?/python3[^/]*/(?!(site|dist)-packages/(?!torch/))|^<")
AGENT_PID = "ORCHESTRATE_AGENT_PID"  # from the guard to the ranks' shim; the program never sees it
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40  # linux/sockios.h; struct ifreq of 64 bits, netdevice(7)
GPU_QUERY_TIMEOUT_S = 20.0  # for nvidia-smi, which may hang on a broken GPU
SCRIPT_TIMEOUT_S = 60.0  # for a vendor's script that sets variables
FAULT_GRACE_S = 10.0  # for further nodes to say what is wrong with them, once one has
# What a script that is sourced changes by being sourced, and what it may change though it was set.
SHELL_NAMES, SEARCH_PATHS = ("_", "OLDPWD", "PWD", "SHLVL"), ("PATH", "LD_LIBRARY_PATH")
# Prints the environment, a NUL behind each variable.
DUMP = r"import os, sys; [sys.stdout.buffer.write(b'%b=%b\0' % v) for v in os.environb.items()]"
FAMILIES = {"ipv4": "AF_INET", "ipv6": "AF_INET6"}  # NCCL user guide, NCCL_SOCKET_FAMILY
# NCCL user guide, NCCL_CONF_FILE: read by the library for what the environment does not set.
NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
# Far more than the defaults of Linux (64 KiB, 8 MiB since 5.16), far less than a site's own limit:
# RDMA locks some tens of MB of buffers for each peer.
LOCKED_BYTES = 1 << 30
CAP_IPC_LOCK, FIRST_USERS = 14, ["0", "0", "4294967295"]  # linux/capability.h; user_namespaces(7)
NO_GPU = ("", "-1", "NoDevFiles")  # names in CUDA_VISIBLE_DEVICES that are no GPU
FILE_LIMIT = 1 << 20  # bytes of a JSON file that are read
# Of what a rank says about its end: characters of the first line, and of those after it. Together
# at most 12 bytes each as JSON, so they fit into one message.
FIRST_LIMIT, DETAIL_LIMIT = 2000, 3000
ECHO_LIMIT = 1 << 18  # bytes of one rank's log that are copied at a time
# What torchrun sets, and reads as defaults of its options (torch/distributed/run.py and
# elastic/agent/server/local_elastic_agent.py of torch 2.13). ROLE_ARN is the user's.
STALE_PREFIXES = ("PET_", "TORCHELASTIC_")
STALE_NAMES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "NODE_RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip

Message = dict[str, Any]
T = TypeVar("T")


class Leave(Exception):
    """Ends this node with an exit code and a reason that is printed without a traceback. `decided`:
    all nodes leave with this code, which is not to be translated any more."""

    def __init__(self, code: int, reason: str, decided: bool = False) -> None:
        super().__init__(reason)
        self.code, self.reason, self.decided = code, reason, decided


@dataclasses.dataclass(frozen=True)
class Result:
    """How torchrun ended on one node; `code` is its own, negative for a signal. Times are counted
    on each node from "go", since the clocks of two nodes may differ."""

    node: int
    host: str
    code: int
    kind: str = ""  # "configuration", "failure" or "hang" where a rank said so, or "undrained"
    rank: int | None = None
    message: str = ""  # one line
    detail: str = ""  # the lines after it
    at: float = 0.0  # when its first rank ended, in seconds since "go"

    @classmethod
    def from_message(cls, fields: object) -> Result | None:
        """What another node has sent; None if that is no result."""
        kinds: dict[str, type | tuple[type, ...]] = {
            "node": int, "host": str, "code": int, "kind": str, "rank": (int, type(None)),
            "message": str, "detail": str, "at": (int, float),
        }  # fmt: skip
        if not isinstance(fields, dict) or fields.keys() != kinds.keys():
            return None
        sane = all(isinstance(fields[name], kind) for name, kind in kinds.items())
        return cls(**fields) if sane else None


class Signals:
    """Remembers the signal that asked this node to stop; the end of its time counts as one."""

    def __init__(self) -> None:
        self.signal, self.began = "", time.monotonic()
        self.limit_s, self.drain_after_s = float("inf"), float("inf")
        # Those that a site may choose for a stop, and a terminal's: unhandled they would kill.
        asking = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
        for number in (signal.SIGTERM, signal.SIGINT, *asking):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.signal = signal.Signals(number).name

    def limit(self, limit_s: float, shutdown_timeout_s: float) -> None:
        """From now on a time limit counts, from the start of this process: the stop begins early
        enough for its checkpoint, and at half of the limit at the earliest."""
        if limit_s:
            self.limit_s = limit_s
            early_s = limit_s - shutdown_timeout_s - TIME_LIMIT_MARGIN_S
            self.drain_after_s = max(early_s, limit_s / 2)

    @property
    def received(self) -> str:
        """Who or what asked to stop, "" if nothing has."""
        late = time.monotonic() - self.began > self.drain_after_s
        return self.signal or (f"the time limit of {self.limit_s:g} s" if late else "")

    def check(self, is_missed: bool = True) -> None:
        """Raises Leave where there is nothing yet that would have to be drained. `is_missed`: with
        the time limit the roll call has failed."""
        if self.received:
            code = EXIT_FAILED if is_missed and not self.signal else EXIT_REQUEUE
            raise Leave(code, f"{self.received} before the attempt had started")


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
            value = json.loads(file.read(FILE_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def attempt_numbers(run_dir: Path) -> list[int]:
    """The numbers of all attempts, the oldest first."""
    try:
        names = os.listdir(run_dir / "attempts")
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def newest_attempt(run_dir: Path) -> int:
    """The number of the newest attempt, 0 before the first."""
    return max(attempt_numbers(run_dir), default=0)


def claim_attempt(run_dir: Path, job_id: str, submission: str = "") -> int:
    """The number of the new attempt; mkdir is what claims it, so two nodes never get the same."""
    attempts = run_dir / "attempts"
    attempts.mkdir(exist_ok=True)
    for _ in range(100):
        number = 1 + newest_attempt(run_dir)
        try:
            (attempts / str(number)).mkdir()
        except FileExistsError:
            continue
        for folder in ("logs", "errors"):
            (attempts / str(number) / folder).mkdir()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        owner = {"job": job_id, "host": socket.gethostname(), "boot_id": boot_id}
        owner |= {"submission": submission} if submission else {}
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


def ended_with(pid: int) -> int | None:
    """Exit code of a child of another process, negative for a signal, for as long as its parent has
    not collected it; None if it is not known (proc(5), field 52)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None


def ending_words(code: int) -> str:
    """How a process ended, in words: `code` is negative for a signal."""
    if code >= 0:
        return f"ended with code {code}"
    known = -code in {number.value for number in signal.Signals}
    name = f" ({signal.Signals(-code).name})" if known else ""
    return f"was killed by signal {-code}{name}"


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


def reap_orphans(keep: int) -> None:
    """Collects orphans that have ended, which come to process 1 or a subreaper. The child `keep` is
    left to who started it: collected here, its exit code would be lost."""
    try:
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == keep:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
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
        self.spares = list[Link]()
        self.gpus, self.faults = {0: args.gpus}, dict[int, str]()
        self.fault_at = float("inf")
        self._note_fault(0, args.host, args.fault)
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
        """Returns when every node has reported, or enough have and no other does for the grace;
        raises Leave that names the missing ones."""
        deadline = time.monotonic() + self.args.start_timeout_s
        enough_at = float("inf")
        while len(self.nodes) < self.args.nnodes:
            signals.check()
            if len(self.nodes) < self.args.sizes[0]:
                enough_at = float("inf")
            elif enough_at == float("inf"):
                enough_at = time.monotonic()
            grace_ends = min(enough_at + self.args.join_grace_s, self.fault_at + FAULT_GRACE_S)
            if time.monotonic() > min(deadline, grace_ends):
                break
            self.poll()
            for link in [k for k, born in self.pending.items() if time.monotonic() > born]:
                self._drop(link)
        check_faults(self)
        if len(self.nodes) < self.args.sizes[0]:
            raise Leave(EXIT_FAILED, self._missing())

    def settle(self) -> None:
        """Numbers the nodes of this attempt from 0 on, as many as an allowed size has."""
        size = max(size for size in self.args.sizes if size <= len(self.nodes))
        numbers = sorted(self.nodes)
        for number in numbers[size:]:
            say(f"node {number} ({self.nodes[number]}) is one too many and waits for the end")
            self.selector.unregister(self.links[number])
            self.spares.append(self.links[number])
        kept = list(enumerate(numbers[:size]))
        self.nodes = {new: self.nodes[old] for new, old in kept}
        self.gpus = {new: self.gpus[old] for new, old in kept}
        self.links = {new: self.links[old] for new, old in kept if old}
        for node, link in self.links.items():
            link.node = node
        self.args.nnodes = size

    def poll(self) -> list[tuple[int, Message | None]]:
        """What nodes have said since the last call; None for a node that is lost."""
        said: list[tuple[int, Message | None]] = []
        for key, _ in self.selector.select(TICK_S):
            link = key.fileobj
            if not isinstance(link, Link):
                self._accept()
                continue
            if link.sock.fileno() < 0:  # it had to make room for one accepted just now
                continue
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
        for link in [*self.links.values(), *self.spares]:
            link.send(message)

    def start(self, go: Message) -> None:
        """Tells each node its place in the attempt."""
        for node, link in self.links.items():
            link.send({"go": {**go, "nnodes": self.args.nnodes, "node_rank": node}})
        for link in self.spares:
            link.send({"go": {"spare": True}})

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
            # A pod that has been made anew comes again until the old one's connection is given up.
            if not (self.args.repeat_codes_from and hello.get("node_rank") in self.nodes):
                link.send({"refused": reason})
            self._drop(link)
            return
        link.node = int(hello["node_rank"])
        self.links[link.node], self.nodes[link.node] = link, host
        self.gpus[link.node] = int(hello.get("gpus", 0))
        self._note_fault(link.node, host, str(hello.get("fault", ""))[:FIRST_LIMIT])
        del self.pending[link]

    def _note_fault(self, node: int, host: str, fault: str) -> None:
        if fault:
            self.faults[node] = f"({host}): {fault}"
            self.fault_at = min(self.fault_at, time.monotonic())

    def _fault(self, hello: Message) -> str:
        """Why this node may not join, or ""."""
        if hello.get("id") != self.args.id:
            return "it belongs to another job or attempt (its --id differs)"
        for key in ("nnodes", "nproc"):
            if hello.get(key) != getattr(self.args, key):
                return f"{key} is {hello.get(key)!r} there and {getattr(self.args, key)} on node 0"
        if type(hello.get("gpus", 0)) is not int:
            return f"its number of GPUs is {hello['gpus']!r}"
        node = hello.get("node_rank")
        if type(node) is not int or not 0 < node < self.args.nnodes:
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
        fewest = self.args.sizes[0]
        text += f"; an attempt needs {fewest}" if fewest < count else ""
        text += f"; here: {', '.join(here[:20])}"
        return text + (f"; refused: {'; '.join(self.refused[:5])}" if self.refused else "")


def join(args: argparse.Namespace, signals: Signals) -> tuple[Link, Message]:
    """Reports to node 0 and waits for its word; raises Leave."""
    deadline = time.monotonic() + args.start_timeout_s
    keys = ("id", "node_rank", "nnodes", "nproc", "gpus", "host", "fault")
    hello = {key: getattr(args, key) for key in keys}
    delay_s, last, said, others = 0.1, "no answer", "", OtherLife(args)
    where = f"node 0 at {args.head} port {args.port}"
    while time.monotonic() < deadline:
        leave_if_done(args)
        if others.goes_on():
            deadline = time.monotonic() + args.start_timeout_s
        others.check()
        signals.check(is_missed=not others.were_there)
        try:
            link = Link(socket.create_connection((args.head, args.port), timeout=5))
            link.send({**hello, "address": args.address})
            # Node 0 names the missing nodes when its time is up: it may have begun a little later.
            if go := await_go(link, signals, deadline + 2 * HELLO_TIMEOUT_S):
                return link, go
            last = "it closed the connection before the attempt had started"
        except OSError as error:
            last = str(error)
        if args.repeat_codes_from and last != said:  # names of pods and their ports come late
            said = last
            say(f"waiting for {where}: {last}")
        time.sleep(delay_s)
        delay_s = min(2.0, delay_s * 1.5)
    # Without the interface of the others it may find no way to node 0 to say what is wrong.
    code = EXIT_CONFIGURATION if args.fault else EXIT_FAILED
    why = f"{args.host}: {args.fault}" if args.fault else last
    raise Leave(code, f"no go from {where} within {args.start_timeout_s:g} s: {why}")


def await_go(link: Link, signals: Signals, deadline: float) -> Message:
    """Node 0's go, {} if the connection broke before; raises Leave when node 0 says no."""
    for message in follow(link, deadline):
        signals.check()
        if message is None:
            break
        if "refused" in message:
            raise Leave(EXIT_FAILED, f"node 0 refused this node: {message['refused']}")
        if "end" in message:
            raise Leave(int(message["end"]), str(message.get("reason")), decided=True)
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


def reserve_port(seed: str, address: str) -> tuple[int, socket.socket]:
    """A port that is free for the family of `address`, and a socket that keeps other jobs of this
    machine off it while it is open."""
    family = socket.getaddrinfo(address, None)[0][0]
    first = zlib.crc32(seed.encode())
    for step in range(500):
        port = PORTS[(first + step) % len(PORTS)]
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0orchestrate-port-{port}")
            with socket.socket(family) as probe:
                probe.bind(("", port))
            return port, mark
        except OSError:
            mark.close()
    raise Leave(EXIT_FAILED, f"no free port among 500 between {PORTS[0]} and {PORTS[-1]}")


# --- this node's place in the network ----------------------------------------------------------


def make_ready(args: argparse.Namespace) -> str:
    """Takes over a vendor's variables, finds the address that the ranks use, and looks at what
    --preflight names; what is wrong with this node, or ""."""
    faults = [source(args.source)] if args.source else []
    put_in_front(args.library_path)
    try:
        args.rank_address = rank_address(args)
    except ValueError as error:
        faults.append(str(error))
    faults += ["" if args.interface else names_nothing(args)]  # the job's variables repeat it
    faults += [PREFLIGHT[item](args) for item in args.preflight]
    fault = "; ".join(filter(None, faults))
    if fault:
        say(f"{args.host}: {fault}")
    return fault


def source(path: str) -> str:
    """Has bash read a vendor's script and takes over what it exports; what went wrong, or "". What
    was set before holds, but for the search paths."""
    if not os.path.isfile(path):
        text = f"there is no {path}, which the fabric needs: install what the vendor ships"
        return f"{text} (in the image, if the run is in one), or choose another network.fabric"
    code, output, said = run_script(path)
    if code != 0 or not output:
        how = ending_words(code) if code else "left the shell that read it"
        how = f"did not end within {SCRIPT_TIMEOUT_S:g} s" if code == -signal.SIGKILL else how
        last = " | ".join(said.strip().splitlines()[-5:])
        return f"{path} {how}; its last lines: {last[-FIRST_LIMIT // 2 :] or '(none)'}"
    taken = []
    for name, value in (pair.split("=", 1) for pair in output.split("\0") if "=" in pair):
        if name not in SHELL_NAMES and (name in SEARCH_PATHS or name not in os.environ):
            taken += [name] if os.environ.get(name) != value else []
            os.environ[name] = value
    say(f"{path} has set {', '.join(sorted(taken)) or 'nothing'}")
    return ""


def run_script(path: str) -> tuple[int, str, str]:
    """The code of bash that reads a script, the environment afterwards (as NAME=VALUE, each with a
    NUL behind it; "" where the script has left the shell), and what the script has said. Files take
    it: a pipe would be waited for where the script has left a process behind."""
    dump = shlex.join([sys.executable, "-I", "-S", "-c", DUMP])
    # Not "source && ...": that would switch off `set -e` in the script.
    command = f"source {shlex.quote(path)} >&2\n_code=$?; ((_code == 0)) || exit $_code"
    keep = {name: value for name, value in os.environ.items() if name != "BASH_ENV"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["bash", "-c", f"{command}\nexec {dump}"], env=keep, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SCRIPT_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        for file in (output, errors):
            file.seek(0)
        return code, os.fsdecode(output.read()), os.fsdecode(errors.read(FILE_LIMIT))


def put_in_front(folders: list[str]) -> None:
    """Adds folders to LD_LIBRARY_PATH, and says which of them are missing."""
    if missing := [folder for folder in folders if not os.path.isdir(folder)]:
        say(f"there is no {', '.join(missing)}: the fabric's libraries will not be found there")
    if folders:
        before = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        kept = [folder for folder in before if folder and folder not in folders]
        os.environ["LD_LIBRARY_PATH"] = ":".join([*folders, *kept])


def rank_address(args: argparse.Namespace) -> str:
    """This node's address between the ranks; raises ValueError with what is wrong."""
    if args.interface:
        found, what = interfaces().get(args.interface, []), f"the interface {args.interface!r}"
    elif args.host_suffix and not is_alone(args):
        name = node_name() + args.host_suffix
        found, what = own_of_name(name), f"{name!r} (this node's name with network.host_suffix)"
    elif args.address_family and not is_alone(args):
        found, what = beside(args.address), f"the interface of {args.address}"
    else:
        return str(args.address)
    usable = [a for a in found if is_alone(args) or is_routable(a)]
    wanted = [a for a in usable if family_name(a) == args.address_family]
    wanted = wanted if args.address_family else sorted(usable, key=lambda a: is_other(a, args.head))
    if not wanted:
        kind = {"ipv4": "IPv4 ", "ipv6": "IPv6 "}.get(args.address_family, "")
        text = f"{what} has no {kind}address here that other nodes can reach"
        raise ValueError(f"{text}; interfaces of this node: {interface_words()}")
    return wanted[0]


def is_alone(args: argparse.Namespace) -> bool:
    """Whether all ranks are on this machine."""
    return bool(args.nnodes <= args.local_world_size or args.allow_loopback)


def node_name() -> str:
    """This node's name as Slurm knows it, else the first part of its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def first_of_own_name() -> str:
    """The address that this machine's own name resolves to first, "" without one."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(found[0][4][0])


def own_of_name(name: str) -> list[str]:
    """The addresses that a name means; raises ValueError unless they are this node's."""
    try:
        found = list(dict.fromkeys(str(f[4][0]) for f in socket.getaddrinfo(name, None)))
    except OSError as error:
        text = f"{name!r} does not resolve: {error}; correct network.host_suffix"
        raise ValueError(text) from None
    own = [address for address in found if interface_of(address)]
    if not own:
        text = f"{name!r} means {', '.join(found)}, which is no address of this node"
        raise ValueError(f"{text}; interfaces of this node: {interface_words()}")
    return own


def beside(address: str) -> list[str]:
    """An address of this node and those that its interface has, too."""
    return [address, *interfaces().get(interface_of(address), [])]


def family_name(address: str) -> str:
    return "ipv6" if ":" in address else "ipv4"


def is_other(address: str, head: str) -> bool:
    """Whether an address is of another kind than that of node 0, where that is given by one; IPv4
    where it is not."""
    return family_name(address) != family_name(head)


def is_routable(address: str) -> bool:
    """Whether other nodes can reach it by the address alone."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return not ip.is_loopback and not (ip.version == 6 and ip.is_link_local)


def network_variables(args: argparse.Namespace, given: dict[str, str]) -> dict[str, str]:
    """What the communication libraries need to know of this node; what the job sets holds. The
    names for xccl and hccl were not tried on their hardware."""
    interface, found = interface_of(args.rank_address), dict[str, str]()
    if not interface:
        return found
    # gloo would take what this machine's own name resolves to: nothing, or a loopback address. But
    # of an interface it takes the first address, an IPv4 one, so that the name may serve better.
    if not (args.address_family and first_of_own_name() == args.rank_address):
        found["GLOO_SOCKET_IFNAME"] = interface
    if "nccl" in args.backend and (args.interface or args.host_suffix):
        found["NCCL_SOCKET_IFNAME"] = f"={interface}"  # without the mark, the beginning of a name
    if "nccl" in args.backend and args.address_family:
        found["NCCL_SOCKET_FAMILY"] = FAMILIES[args.address_family]
    if args.backend == "xccl":
        found["CCL_KVS_IFACE"] = interface
    # The address goes before the name, so it would win over a name that the job gives.
    exact = f"={interface}"
    if args.backend == "hccl" and given.get("HCCL_SOCKET_IFNAME", exact) in (interface, exact):
        found |= {"HCCL_SOCKET_IFNAME": exact, "HCCL_IF_IP": args.rank_address}
    return found


def names_nothing(args: argparse.Namespace) -> str:
    """Which variable of the job names interfaces that are not here, or "": the library would fail
    with a text of its own, and the attempt be repeated."""
    libraries = ["GLOO_SOCKET_IFNAME"] + ["NCCL_SOCKET_IFNAME"] * ("nccl" in args.backend)
    for name in libraries:
        value = os.environ.get(name, "")
        if value and not value.startswith("^") and not is_here(value, name.startswith("GLOO")):
            text = f"{name} is {value!r}, and no interface here is called so"
            return f"{text}; interfaces of this node: {interface_words()}"
    return ""


def is_here(value: str, is_gloo: bool) -> bool:
    """Whether this machine has what a library is given as names of interfaces. gloo uses each of
    them; NCCL one or more, and each is the beginning of a name unless "=" comes first."""
    here, wanted = list(interfaces()), value.removeprefix("=").split(",")
    if is_gloo:
        return all(name in here for name in wanted)
    if value.startswith("="):
        return any(name.partition(":")[0] in here for name in wanted)
    return any(name.startswith(part.partition(":")[0]) for part in wanted for name in here)


def interface_of(name: str) -> str:
    """The network interface that has the address that a name means, "" where none has."""
    try:
        address = str(socket.getaddrinfo(name, None)[0][4][0]).partition("%")[0]
        return interface_table().get(ipaddress.ip_address(address).packed, "")
    except OSError:
        return ""


def interfaces() -> dict[str, list[str]]:
    """The addresses of each interface of this machine, IPv4 before IPv6, none that is link-local
    (it means nothing without the interface)."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for packed, name in interface_table().items():
        ip = ipaddress.ip_address(packed)
        if ip.version == 4 or not ip.is_link_local:
            found.setdefault(name, []).append(str(ip))
    return found


def interface_words() -> str:
    """The interfaces of this machine and their addresses, in words."""
    pairs = interfaces().items()
    return "; ".join(f"{name}: {', '.join(found) or 'no address'}" for name, found in pairs)


def interface_table() -> dict[bytes, str]:
    """The interface of each address of this machine; raises OSError."""
    return {**ipv4_interfaces(), **ipv6_interfaces()}


def ipv4_interfaces() -> dict[bytes, str]:
    """The interface of each IPv4 address of this machine; raises OSError."""
    room = array.array("B", bytes(1024 * IFREQ_BYTES))
    request = struct.pack("iP", len(room), room.buffer_info()[0])  # struct ifconf
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        size = struct.unpack("iP", fcntl.ioctl(probe, SIOCGIFCONF, request))[0]
    entries = [room[at : at + IFREQ_BYTES].tobytes() for at in range(0, size, IFREQ_BYTES)]
    return {entry[20:24]: os.fsdecode(entry[:16].partition(b"\0")[0]) for entry in entries}


def ipv6_interfaces() -> dict[bytes, str]:
    """The interface of each IPv6 address of this machine; raises OSError."""
    table = Path("/proc/net/if_inet6")  # missing where the kernel has no IPv6
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    return {bytes.fromhex(fields[0]): fields[-1] for fields in map(str.split, lines)}


# --- preflight ---------------------------------------------------------------------------------


def lacks_locked_memory(args: argparse.Namespace) -> str:
    """Why RDMA cannot lock its buffers here, or "". The limit is raised as far as that is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= LOCKED_BYTES or may_lock_all():
        return ""
    text = f"a process may lock only {hard // 1024} KiB of memory, which is too little for RDMA"
    text += ": raise it (Slurm: LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept"
    return f"{text}=MEMLOCK; Kubernetes: the capability IPC_LOCK and run_as_user: 0)"


def may_lock_all() -> bool:
    """Whether the limit does not hold for this process: the kernel asks for the capability of the
    first user namespace."""
    lines = sheet_text(Path("/proc/self/status")).splitlines()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    is_first = sheet_text(Path("/proc/self/uid_map")).split() == FIRST_USERS
    return is_first and bool(held >> CAP_IPC_LOCK & 1)


def has_slices(args: argparse.Namespace) -> str:
    """Why the ranks of this node cannot use NCCL on its GPUs, or ""."""
    ranks = max(args.nproc, args.local_world_size)
    if args.shared_gpus or args.local_rank or ranks < 2 or not shutil.which("nvidia-smi"):
        return ""
    try:
        text = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, check=True,
            timeout=GPU_QUERY_TIMEOUT_S,
        ).stdout.decode(errors="replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        say(f"{args.host}: nvidia-smi does not list the GPUs: {error}")
        return ""
    slices = visible_slices(text, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not slices:
        return ""
    said = f"{ranks} ranks would use slices of GPUs (MIG: {', '.join(slices[:8])})"
    return f"{said}, which NCCL does not support: ask for whole GPUs, or set network.shared_gpus"


def visible_slices(text: str, named: str | None) -> list[str]:
    """The MIG devices that a program can use, by what `nvidia-smi -L` prints and the value of
    CUDA_VISIBLE_DEVICES (None: not set)."""
    names, found, gpu = [n.strip() for n in (named or "").split(",")], list[str](), ("", "")
    for line in text.splitlines():
        ident = (re.findall(r"\(UUID: ([^)]*)\)", line) or [""])[-1]
        if match := re.match(r"GPU (\d+):", line):
            gpu = (match[1], ident)
        match = re.match(r" +(MIG \S+)", line)
        if match and (named is None or {ident, *gpu} & set(names)):
            found.append(f"{match[1]} of GPU {gpu[0]}")
    return found


def show_nccl_files(args: argparse.Namespace) -> str:
    """Says what NCCL will read from files of this node; always ""."""
    own = os.environ.get("NCCL_CONF_FILE") or NCCL_FILES[1]
    for path in (NCCL_FILES[0], own) if args.local_rank == 0 else ():
        lines = sheet_text(Path(path).expanduser()).splitlines()
        pairs = [line.strip().split("=", 1) for line in lines if re.match(r"\s*NCCL_\w+=", line)]
        words = [
            f"{name}={value}" + (f" (not used: {held!r} is set)" if held is not None else "")
            for name, value in pairs
            for held in [os.environ.get(name)]
        ]
        if words:
            say(f"{args.host}: NCCL reads {path}: {', '.join(words[:20])}")
    return ""


def has_twin_routes(args: argparse.Namespace) -> str:
    """Why it is left to chance which interface the ranks use, or "": two in one subnet, none of
    them named."""
    named = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    if args.interface or args.host_suffix or any(name in os.environ for name in named):
        return ""
    interface = "" if is_alone(args) else interface_of(args.rank_address).partition(":")[0]
    for network, ways in routes().items():
        if is_in(args.rank_address, network) and interface in ways and len(ways) > 1:
            others = [name for name, metric in ways.items() if metric <= ways[interface]]
            if len(others) > 1:
                text = f"the interfaces {' and '.join(sorted(others))} are both in {network}"
                text += ": which one the ranks use is left to chance. Name it with"
                return f"{text} network.interface; interfaces of this node: {interface_words()}"
    return ""


Network = Any  # IPv4Network or IPv6Network


def is_in(name: str, network: Network) -> bool:
    """Whether a name means an address in a network."""
    address = str(socket.getaddrinfo(name, None)[0][4][0]).partition("%")[0]
    return bool(ipaddress.ip_address(address) in network)


def routes() -> dict[Network, dict[str, int]]:
    """The interfaces that lead to each network with several addresses, and the metric of each."""
    found: dict[Network, dict[str, int]] = {}
    for network, interface, metric in (*ipv4_routes(), *ipv6_routes()):
        if 0 < network.prefixlen < network.max_prefixlen:
            ways = found.setdefault(network, {})
            ways[interface] = min(metric, ways.get(interface, metric))
    return found


def ipv4_routes() -> Iterator[tuple[Network, str, int]]:
    """(network, interface, metric) of each route, as /proc/net/route has them (proc(5))."""
    for line in sheet_text(Path("/proc/net/route")).splitlines()[1:]:
        interface, target, _, _, _, _, metric, mask = line.split()[:8]
        packed = struct.pack("=I", int(target, 16))
        yield ipaddress.ip_network((packed, int(mask, 16).bit_count())), interface, int(metric)


def ipv6_routes() -> Iterator[tuple[Network, str, int]]:
    """The same as /proc/net/ipv6_route has them (Linux, net/ipv6/route.c, rt6_info_route)."""
    for line in sheet_text(Path("/proc/net/ipv6_route")).splitlines():
        target, length, _, _, _, metric, _, _, _, interface = line.split()
        network = ipaddress.ip_network((bytes.fromhex(target), int(length, 16)))
        yield network, interface, int(metric, 16)


PREFLIGHT: dict[str, Callable[[argparse.Namespace], str]] = {
    "memlock": lacks_locked_memory,
    "mig": has_slices,
    "nccl-conf": show_nccl_files,
    "routes": has_twin_routes,
}


# --- torchrun ----------------------------------------------------------------------------------


class Agent:
    """torchrun on this node and the ranks below it. Only the main thread may start it: a process
    that dies with its parent dies with the thread that made it."""

    def __init__(self, args: argparse.Namespace, go: Message, signals: Signals) -> None:
        self.args, self.signals, self.attempt = args, signals, int(go["attempt"])
        self.dir = Path(args.run_dir) / "attempts" / str(self.attempt)
        self.ranks = range(args.node_rank * args.nproc, (args.node_rank + 1) * args.nproc)
        self.began, self.stopping = time.monotonic(), ""
        self.undrained: Result | None = None
        self.hang: Hang | None = None
        self.pulses = Pulses()
        self.term_at, self.kill_at, self.drain_at = float("inf"), float("inf"), float("inf")
        self.drain_limit_s = float(args.shutdown_timeout_s)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        command = agent_command(args, go, self.dir)
        # Its folder is not the user's: a folder "torch" there would be imported. A session of its
        # own keeps a terminal's signals away: they reach it through this process.
        self.process = subprocess.Popen(
            command,
            cwd=self.dir,
            env=environment(args, go),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.watch = RankWatch(self.process.pid, self.ranks, self.elapsed_s)
        if not args.direct:
            self.watch.start()

    def elapsed_s(self) -> float:
        """Seconds since "go"."""
        return time.monotonic() - self.began

    def stop(self, reason: str) -> None:
        """Ends torchrun: SIGTERM now, SIGKILL in a few seconds."""
        if not self.stopping:
            self.stopping = reason
            say(f"ending the ranks: {reason}")
        self.term_at = min(self.term_at, time.monotonic())

    def poll(self) -> Result | None:
        """Does what is due; the result once torchrun and all below it are gone."""
        code = self.process.poll()
        if code is not None:
            if not self.args.direct:
                self.watch.finish()
            end_descendants()
            return self._result(code)
        reap_orphans(keep=self.process.pid)
        now = time.monotonic()
        self._watch_for_hang(now)
        self._drain(now)
        if self.kill_at < now:
            self.process.kill()
        elif self.term_at < now and self.kill_at == float("inf"):
            self.process.terminate()
            self.kill_at = now + KILL_GRACE_S
        return None

    def _drain(self, now: float) -> None:
        drain = self.dir / "drain"
        if self.drain_at == float("inf") and (self.signals.received or os.path.exists(drain)):
            self._ask_to_drain(drain)
            self.drain_limit_s = drain_limit_s(self.args)
            self.drain_at = now + self.drain_limit_s
        if self.drain_at < now and not self.stopping:
            if not self._errors():
                self.undrained = self._undrained()
            self.stop(f"not drained within {self.drain_limit_s:g} s")
        elif self.term_at == float("inf") and self._errors():
            self.term_at = now + FAILURE_GRACE_S

    def _watch_for_hang(self, now: float) -> None:
        if self.hang is not None:
            if self.hang.is_over(now):
                for pid in self._rank_pids().values():
                    kill(pid, signal.SIGKILL)
                self.stop("the attempt hangs")  # torchrun itself may be what was stopped
        elif os.path.exists(self.dir / "hang"):
            say(f"attempt {self.attempt} hangs: the ranks report into {self.dir / 'hangs'}")
            self.hang = Hang(self.dir, self.args.host, self._rank_pids())
        elif silent := self.pulses.silent(now, self._known_pids()):
            self._mark(*silent)

    def _known_pids(self) -> dict[int, int]:
        return {self.ranks[0]: self.process.pid} if self.args.direct else dict(self.watch.found)

    def _mark(self, rank: int, quiet_s: float) -> None:
        try:
            mark_as_hanging(self.dir, self.args.host, rank, quiet_s)
        except OSError as error:
            say(f"cannot write {self.dir / 'hang'}: {error}")
            self.stop(f"rank {rank} has not run for {quiet_s:g} s")

    def _ask_to_drain(self, drain: Path) -> None:
        say(f"draining attempt {self.attempt}: {self.signals.received or 'the drain file'}")
        try:
            drain.touch()
        except OSError as error:  # a full disk: the ranks take a signal for the same
            say(f"cannot make {drain}: {error}; sending SIGTERM to the ranks")
            for pid in self._rank_pids().values():
                kill(pid, signal.SIGTERM)

    def _rank_pids(self) -> dict[int, int]:
        pid = self.process.pid
        return {self.ranks[0]: pid} if self.args.direct else ranks_below(pid, self.ranks)

    def _undrained(self) -> Result:
        """The fault of this node where ranks have not stopped though they were asked to."""
        left = sorted(self._rank_pids())
        limit_s, by = self.drain_limit_s, self.signals.received or "the drain file"
        text = f"not drained within {limit_s:g} s of {by}, killed; steps since the last checkpoint"
        text += f" are lost; not stopped: {named_ranks(left)}"
        rank = left[0] if len(left) == 1 else None
        return self._fault(EXIT_FAILED, "undrained", rank, text, self.elapsed_s())

    def _errors(self) -> dict[int, Message]:
        return {r: e for r in self.ranks if (e := read_json(error_path(self.dir, r)))}

    def _fault(self, code: int, kind: str, rank: int | None, text: str, at: float) -> Result:
        first, detail = shortened(text)
        return Result(self.args.node_rank, self.args.host, code, kind, rank, first, detail, at)

    def _result(self, code: int) -> Result:
        errors = self._errors()
        faults = [r for r, e in errors.items() if e.get("kind") == "configuration"]
        hung = [r for r, e in errors.items() if e.get("kind") == "hang"]
        if code == 0 and not faults:
            return self._fault(0, "", None, "", self.elapsed_s())
        if not faults and not hung and self.hang and (fault := self.hang.fault()):
            return self._fault(code, "hang", *fault, self.elapsed_s())
        faults = faults or hung
        if self.undrained and not faults:
            return self.undrained
        rank, at, words = self.watch.first or (next(iter(errors), None), self.elapsed_s(), "")
        if self.args.direct:
            rank, words = self.ranks[0], f"it {ending_words(code)}"
        elif code < 0 and not self.stopping and not faults:
            # The ranks died with it: none of them is at fault.
            return self._fault(code, "", None, f"torchrun {ending_words(code)}", at)
        rank = faults[0] if faults else rank
        error = errors.get(rank, {}) if rank is not None else {}
        words = words or f"torchrun {ending_words(code)}"
        text, kind = str(error.get("message") or words), str(error.get("kind", ""))[:20]
        return self._fault(code, kind, rank, text, at)


def shortened(text: str) -> tuple[str, str]:
    """The first line of a text and those after it, each kept short; the latter end with a line."""
    first, *rest = text.strip().splitlines() or [""]
    detail = "\n".join(rest).strip("\n")
    if len(detail) > DETAIL_LIMIT:
        detail = detail[:DETAIL_LIMIT].rpartition("\n")[0] + "\n..."
    return (first if len(first) <= FIRST_LIMIT else f"{first[:FIRST_LIMIT]}..."), detail


def named_ranks(ranks: list[int]) -> str:
    """The ranks in words, the first 20 by number."""
    if not ranks:
        return "torchrun itself"
    more = f" and {len(ranks) - 20} more" if len(ranks) > 20 else ""
    return f"rank {', '.join(map(str, ranks[:20]))}{more}"


def ranks_below(agent_pid: int, ranks: range) -> dict[int, int]:
    """The pid of each of these ranks that lives. It is a child of the agent: what a rank starts
    has the rank's variables too."""
    found: dict[int, int] = {}
    for pid, _ in descendants(agent_pid):
        rank = environment_of(pid).get("RANK", "")
        if rank.isdecimal() and int(rank) in ranks and (stat_of(pid) or (0,))[0] == agent_pid:
            found[int(rank)] = pid
    return found


class RankWatch(threading.Thread):
    """Notes which rank fails first: torchrun does not say, and the others fail for its sake."""

    def __init__(self, agent_pid: int, ranks: range, clock: Callable[[], float]) -> None:
        super().__init__(daemon=True)
        self.agent_pid, self.ranks, self.clock = agent_pid, ranks, clock
        self.ended = threading.Event()
        self.found: dict[int, int] = {}  # the pid of each rank that has been seen
        self.first: tuple[int, float, str] | None = None  # rank, time of `clock`, how it ended

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            try:
                while len(self.found) < len(self.ranks) and not self.ended.wait(TICK_S / 4):
                    self._find(selector)
                if len(self.found) == len(self.ranks):
                    self._await_first(selector)
            except OSError:
                return  # a kernel before 5.3 has no pidfd, or a rank was gone before it was found
            finally:
                for key in list(selector.get_map().values()):
                    os.close(key.fd)

    def finish(self) -> None:
        self.ended.set()
        self.join(timeout=HELLO_TIMEOUT_S)

    def _find(self, selector: selectors.BaseSelector) -> None:
        for rank, pid in ranks_below(self.agent_pid, self.ranks).items():
            if rank not in self.found:
                self.found[rank] = pid
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (rank, pid))

    def _await_first(self, selector: selectors.BaseSelector) -> None:
        while selector.get_map() and not self.first:
            gone = [key for key, _ in selector.select(TICK_S)]
            failed = {r: code for r, code in map(self._left, gone) if code != 0}
            if failed:
                rank, code = min(failed), failed[min(failed)]
                words = "it ended first" if code is None else f"it {ending_words(code)}"
                self.first = (rank, self.clock(), words)
            elif not gone and self.ended.is_set():
                return
            for key in gone:
                selector.unregister(key.fileobj)
                os.close(key.fd)

    def _left(self, key: selectors.SelectorKey) -> tuple[int, int | None]:
        rank, pid = key.data
        return rank, ended_with(pid)


def drain_limit_s(args: argparse.Namespace) -> float:
    """Seconds from the request to stop until ranks are ended: the shutdown timeout, or more where
    the program says that its checkpoints take longer."""
    timeout_s = float(args.shutdown_timeout_s)
    needed_s = read_json(Path(args.run_dir) / GRACE_FILE).get("seconds")
    if not isinstance(needed_s, (int, float)):
        return timeout_s
    return max(timeout_s, min(float(needed_s), GRACE_FACTOR * timeout_s))


def guarded(command: list[str]) -> list[str]:
    """The command in a form that dies with this process."""
    me = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*me, "--guard", str(os.getpid()), *command]


def agent_command(args: argparse.Namespace, go: Message, attempt_dir: Path) -> list[str]:
    """torchrun for a world of fixed size (static rendezvous, no restart in place), in a form that
    dies with this process; with --direct the rank itself, which does so by its shim."""
    rank = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--rank"]
    rank += [str(attempt_dir), args.workdir, *args.program]
    if args.direct:
        return rank
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
    run = [sys.executable, "-m", args.agent, *(f"--{k}={v}" for k, v in options.items())]
    return guarded([*run, "--no-python", *rank])


def environment(args: argparse.Namespace, go: Message) -> dict[str, str]:
    """This process's environment without an outer launcher's variables, with the contract's."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(STALE_PREFIXES) and name not in STALE_NAMES
    }
    return (
        network_variables(args, keep)
        | keep
        | (direct_variables(args, go) if args.direct else {})
        | {
            "ORCHESTRATE_RUN_DIR": args.run_dir,
            "ORCHESTRATE_ATTEMPT": str(go["attempt"]),
            "ORCHESTRATE_CHECKPOINT_DIR": os.path.join(args.run_dir, "checkpoints"),
            "ORCHESTRATE_WORKDIR": args.workdir,
        }
    )


def direct_variables(args: argparse.Namespace, go: Message) -> dict[str, str]:
    """What torchrun would set. Rank 0's program keeps the store itself, as torch's env:// does
    where TORCHELASTIC_USE_AGENT_STORE is not set."""
    rank, size = args.node_rank, args.local_world_size
    variables = {
        AGENT_PID: os.getpid(),
        "RANK": rank,
        "WORLD_SIZE": args.nnodes,
        "LOCAL_RANK": args.local_rank,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": rank // size,
        "NODE_RANK": rank // size,
        "GROUP_WORLD_SIZE": args.nnodes // size,
        "MASTER_ADDR": go["master_addr"],
        "MASTER_PORT": go["master_port"],
    }
    return {name: str(value) for name, value in variables.items()}


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
        self.host, self.ended, self.failed = agent.args.host, threading.Event(), False

    def run(self) -> None:
        while not self.ended.wait(TICK_S):
            self.copy()
        while self.copy(last=True):
            pass  # what is left; the ranks are gone, so it becomes no more

    def copy(self, last: bool = False) -> bool:
        """Copies at most ECHO_LIMIT of each log; whether there was anything."""
        copied = False
        for rank, path in self.logs.items():
            data = self._next(rank, path, last)
            prefix = f"[rank {rank} {self.host}] ".encode()
            self._write(b"".join(prefix + line + b"\n" for line in data.splitlines()))
            copied = copied or bool(data)
        return copied

    def _next(self, rank: int, path: Path, last: bool) -> bytes:
        """The next whole lines of a log; a line beyond the limit, or the last, as it stands."""
        try:
            with path.open("rb") as file:
                file.seek(self.offsets[rank])
                data = file.read(ECHO_LIMIT)
        except OSError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        if last or (not whole and len(data) == ECHO_LIMIT):
            whole = data
        self.offsets[rank] += len(whole)
        return whole

    def _write(self, data: bytes) -> None:
        """Writes to standard output. What a full disk does not take is left out: the rank's log
        has it."""
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError as error:
            if not self.failed:
                say(f"cannot copy the ranks' output, it is in their logs: {error}")
            self.failed = True

    def finish(self) -> None:
        self.ended.set()
        self.join(timeout=HELLO_TIMEOUT_S)


# --- a hang ------------------------------------------------------------------------------------


class Hang:
    """What this node adds to the reports of the ranks once a watchdog has made the file `hang`:
    how their processes stand, and the stacks of those whose own thread cannot write them.

    Built, it asks for the stacks. What is stopped goes on, so that it can answer.
    """

    def __init__(self, attempt_dir: Path, host: str, pids: dict[int, int]) -> None:
        self.dir, self.host, self.began = attempt_dir / "hangs", host, time.monotonic()
        self.seen = {
            rank: [look_at(pid), *(look_at(p) for p, _ in descendants(pid))]
            for rank, pid in pids.items()
        }
        self.written = False
        for process in (process for tree in self.seen.values() for process in tree):
            if process["answers"]:
                kill(process["pid"], signal.SIGQUIT)
            if process["state"].startswith("T"):
                kill(process["pid"], signal.SIGCONT)

    def is_over(self, now: float) -> bool:
        """Does what is due; whether the ranks are to be ended now."""
        if not self.written and now - self.began > STACKS_S:
            self.written = True
            try:
                self.write()
            except OSError as error:
                say(f"cannot write into {self.dir}: {error}")
        late = now - self.began > HANG_GRACE_S
        return late or (self.written and os.path.exists(self.dir / "verdict.json"))

    def write(self) -> None:
        """Writes what was seen of each rank, and the stacks."""
        self.dir.mkdir(exist_ok=True)
        for rank, (process, *below) in self.seen.items():
            name = f"rank-{rank:05}"
            for child in below:
                child["at"] = self._save(child["pid"], f"{name}.below-{child['pid']}.stacks.txt")
            at = self._save(process["pid"], f"{name}.stacks.txt")
            said = {"version": 1, "rank": rank, "host": self.host, **process, "at": at}
            # A wrapper's child is the rank, and may tell.
            said["answers"] = any(each["answers"] for each in (process, *below))
            words = [below_words(child) for child in below]
            write_json(self.dir / f"{name}.process.json", {**said, "below": words})

    def _save(self, pid: int, name: str) -> str:
        """Keeps the stacks of a process, which may have written later ones; where it is."""
        text = sheet_of(pid).partition("\n")[2]
        if text:
            (self.dir / name).write_text(text, encoding="utf-8")
        return place_in(text)

    def fault(self) -> tuple[int, str] | None:
        """A rank of this node that could not report, and why, where no rank has compared them."""
        if os.path.exists(self.dir / "verdict.json"):
            return None
        for rank, (process, *_) in self.seen.items():
            if not os.path.exists(self.dir / f"rank-{rank:05}.json"):
                at = place_in(sheet_text(self.dir / f"rank-{rank:05}.stacks.txt"))
                text = f"no progress: its process was in state {process['state']} and Python ran in"
                return rank, f"{text} none of its threads; {at or 'no stacks'}; see {self.dir}"
        return None


def look_at(pid: int) -> Message:
    """How a process stands (proc(5)), and whether it writes its stacks when asked to."""
    lines = sheet_text(Path(f"/proc/{pid}/status")).splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    caught = int(status.get("SigCgt", "0"), 16)
    return {
        "pid": pid,
        "name": status.get("Name", "?"),
        "state": status.get("State", "? (gone)"),
        "wchan": sheet_text(Path(f"/proc/{pid}/wchan")),
        "answers": bool(caught >> (signal.SIGQUIT - 1) & 1),
    }


def below_words(process: Message) -> str:
    """A process that a rank has started, in words."""
    words = f"process {process['pid']} ({process['name']}, state {process['state']}"
    words += f", in {process['wchan']})" if process["wchan"].strip("0") else ")"
    return f"{words} at {process['at']}" if process["at"] else words


def sheet_text(path: Path) -> str:
    """The text of a small file, "" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_LIMIT).decode(errors="replace")
    except OSError:
        return ""


def sheet_of(pid: int) -> str:
    """What a process has written on its sheet of memory (trainer/stacks.py), "" if it has none."""
    wanted, folder = f"/memfd:orchestrate-stacks-{pid} (deleted)", f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return ""  # it has ended
    for number in numbers:
        with contextlib.suppress(OSError):  # a file was closed meanwhile
            if os.readlink(f"{folder}/{number}") == wanted:
                return sheet_text(Path(folder, number))
    return ""


def place_in(text: str) -> str:
    """Where the main thread is, as "FILE:LINE in FUNCTION", by the stacks that faulthandler wrote;
    "" if they do not say. What is not of torch or Python itself comes first."""
    main = text.rpartition("(most recent call first):")[2]  # it began first, so it comes last
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', main, re.MULTILINE)
    own = [frame for frame in frames if not LIBRARY.search(frame[0])]
    return "{}:{} in {}".format(*(own or frames)[0]) if frames else ""


class Pulses:
    """Finds the rank whose watchdog does not run: it cannot notice that it hangs itself. Time is
    counted in looks, so that a job that was suspended as a whole has lost none."""

    def __init__(self) -> None:
        self.due = 0.0
        self.heard: dict[int, tuple[str, int]] = {}  # a rank's last beat, and the looks since

    def silent(self, now: float, pids: dict[int, int]) -> tuple[int, float] | None:
        """A rank that has been silent beyond its limit, and for how many seconds."""
        if now < self.due:
            return None
        self.due = now + PULSE_S
        for rank, pid in pids.items():
            beat = sheet_of(pid).partition("\n")[0]
            before, looks = self.heard.get(rank, ("", 0))
            looks = looks + 1 if beat == before else 0
            self.heard[rank] = beat, looks
            limit_s = float(beat.split()[1]) if beat else 0.0
            if limit_s and looks * PULSE_S > limit_s + SILENCE_S:
                return rank, looks * PULSE_S
        return None


def mark_as_hanging(attempt_dir: Path, host: str, rank: int, quiet_s: float) -> None:
    """Does what the watchdog of a rank would have done; raises OSError."""
    said = {"version": 1, "rank": rank, "host": host, "quiet_s": quiet_s}
    write_json(attempt_dir / "hang", said)


def why_hanging(attempt_dir: Path) -> str:
    """Why the attempt is ended as a hang, "" if it is not."""
    if not os.path.exists(attempt_dir / "hang"):
        return ""
    verdict, mark = (read_json(attempt_dir / n) for n in ("hangs/verdict.json", "hang"))
    text = (
        f"rank {mark.get('rank')} on {mark.get('host')} made no progress; see {attempt_dir}/hangs"
    )
    return str(verdict.get("message") or text)


# --- one attempt -------------------------------------------------------------------------------


def decide(results: list[Result], outcome: str, local_size: int = 1, hang: str = "") -> Message:
    """What end.json says: code, reason (one line, more in `detail`), and who was first at fault.
    The code is the gravest: configuration, hang, failed, requeue, done. `local_size` of those that
    sent the results are on one node. `hang`: why the attempt was ended as one, if it was."""
    results = sorted(results, key=lambda r: r.at)
    graver = [[r for r in results if r.kind == kind] for kind in ("configuration", "hang")]
    faulty = graver[0] or graver[1] or [r for r in results if r.code]
    if not faulty:
        code = {"done": EXIT_DONE, "drained": EXIT_REQUEUE}.get(outcome, EXIT_FAILED)
        reason = outcome or "the ranks ended with 0 but rank 0 left no outcome.json"
        return ending(code, reason)
    first = faulty[0]
    if hang and not graver[0] and not graver[1]:
        return ending(EXIT_HANG, *shortened(hang))
    codes = {"configuration": EXIT_CONFIGURATION, "hang": EXIT_HANG}
    code = codes.get(first.kind, EXIT_FAILED)
    node = first.node // local_size
    who = f"node {node} ({first.host})"
    who = who if first.rank is None else f"rank {first.rank} on {who}"
    more = also_undrained(first, faulty[1:], local_size)
    return ending(code, f"{who}: {first.message}{more}", first.detail, node, first.rank)


def also_undrained(first: Result, others: list[Result], local_size: int) -> str:
    """The ranks of other nodes that did not stop either: the first may have waited for them."""
    if first.kind != "undrained":
        return ""
    kept = [r for r in others if r.kind == first.kind]
    words = [
        f"; on node {r.node // local_size} ({r.host}) too, {r.message.rpartition('; ')[2]}"
        for r in kept[:NODES_SHOWN]
    ]
    rest = len(kept) - NODES_SHOWN
    return "".join(words) + (f"; and on {rest} more" if rest > 0 else "")


def ending(
    code: int, reason: str, detail: str = "", node: int | None = None, rank: int | None = None
) -> Message:
    said = {"version": 1, "code": code, "reason": reason, "detail": detail}
    return {**said, "node": node, "rank": rank}


def run_head(args: argparse.Namespace, signals: Signals) -> int:
    """Node 0's life; the exit code of all nodes."""
    head = Head(args)
    try:
        head.gather(signals)
        leave_if_done(args)
        leave_if_spent(args)
        head.settle()
        check_gpus(head)
        attempt = claim_attempt(Path(args.run_dir), args.id, args.submission)
        port, mark = reserve_port(f"{args.id}-{attempt}", args.rank_address)
        head.close_roll_call()
        go = {"attempt": attempt, "master_addr": args.rank_address, "master_port": port}
        say(f"attempt {attempt}: {args.nnodes} nodes are here: {', '.join(head.nodes.values())}")
        head.start(go)
        with mark:
            agent = Agent(args, go, signals)
            results = echoed(args, agent, lambda: collect(head, agent))
    except (Leave, OSError) as fault:
        leave = fault if isinstance(fault, Leave) else Leave(EXIT_FAILED, f"node 0: {fault}")
        leave = without_attempt(args, leave)
        head.broadcast({"end": leave.code, "reason": leave.reason})
        raise leave from None
    outcome, hang = outcome_of(agent.dir), why_hanging(agent.dir)
    end = decide(results, outcome, args.local_world_size, hang)
    if args.repeat_codes_from and end["code"] == EXIT_REQUEUE and signals.received:
        end["reason"] += f" by {signals.received}"
    return finish(head, agent, end)


def check_faults(head: Head) -> None:
    """Raises Leave that names the nodes that are not fit for the run, and says why."""
    size = head.args.local_world_size
    if head.faults:
        said = (f"node {n // size} {text}" for n, text in sorted(head.faults.items()))
        words = list(dict.fromkeys(said))  # with --direct each rank of a node says the same
        more = f"; and {len(words) - 5} more" if len(words) > 5 else ""
        raise Leave(EXIT_CONFIGURATION, f"{'; '.join(words[:5])}{more}")


def check_gpus(head: Head) -> None:
    """Raises Leave that names the nodes with fewer GPUs than each is to have. Where none shows any
    they are of a kind that is not known here, and the program will say what it finds."""
    wanted, size = head.args.gpus_per_node, head.args.local_world_size
    if not any(head.gpus.values()):
        return
    short = {n // size: n for n, count in sorted(head.gpus.items()) if count < wanted}
    if short:
        words = [f"node {k} ({head.nodes[n]}) has {head.gpus[n]}" for k, n in short.items()]
        more = f" and {len(words) - 20} more" if len(words) > 20 else ""
        text = f"{wanted} GPUs are asked for on each node, but {', '.join(words[:20])}{more}: "
        text += "ask for a kind of node that has them (partition, constraint), or for fewer GPUs"
        raise Leave(EXIT_CONFIGURATION, text)


def visible_gpus() -> int:
    """How many GPUs a program on this node can use, as far as that shows without their library."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return len([p for p in Path("/dev").glob("nvidia*") if p.name[6:].isdecimal()])
    # CUDA C Programming Guide: those before the first that there is not. Slurm has said NoDevFiles.
    names = [name.strip() for name in named.split(",")]
    return next((k for k, name in enumerate(names) if name in NO_GPU), len(names))


def outcome_of(attempt_dir: Path) -> str:
    return str(read_json(attempt_dir / "outcome.json").get("outcome", ""))


def finish(head: Head, agent: Agent, end: Message) -> int:
    """Tells all how the attempt has ended; a full disk does not change that. Returns the code."""
    try:
        write_json(agent.dir / "end.json", end)
    except OSError as error:
        say(f"cannot write {agent.dir / 'end.json'}: {error}")
    code, given_up = leaving_code(agent.args, int(end["code"]))
    reason = f"{end['reason']}; not started again: {given_up}" if given_up else end["reason"]
    head.broadcast({"end": code, "reason": reason})
    say(f"attempt {agent.attempt} ended with {code}: {reason}")
    return code


def collect(head: Head, agent: Agent) -> list[Result]:
    """The results of all nodes; the first bad one ends all."""
    results: dict[int, Result] = {}
    limit, stopped, life = float("inf"), False, LifeSign(agent)
    while len(results) < head.args.nnodes and time.monotonic() < limit:
        life.show()
        for result in heard(head, agent):
            results.setdefault(result.node, result)
        if 0 not in results and (own := agent.poll()):
            results[0] = own
        if results and limit == float("inf"):
            limit = time.monotonic() + agent.args.shutdown_timeout_s + FAILURE_GRACE_S
        if not stopped and (bad := next((r for r in results.values() if r.code), None)):
            stopped, limit = True, time.monotonic() + FAILURE_GRACE_S
            agent.stop(f"node {bad.node} failed")
            head.broadcast({"stop": f"node {bad.node} ({bad.host}) failed"})
    text = "it did not end in time after the others"
    late = [n for n in range(head.args.nnodes) if n not in results]
    return [*results.values(), *(lost(n, head.nodes, text, agent.elapsed_s()) for n in late)]


def heard(head: Head, agent: Agent) -> list[Result]:
    """Results that other nodes have sent since the last call, or that they were lost with."""
    hosts, found = dict(head.nodes), list[Result]()
    for node, message in head.poll():
        if message is None:
            found.append(lost(node, hosts, "the node was lost", agent.elapsed_s()))
        elif "result" in message:
            result = Result.from_message(message["result"])
            if result is None or result.node != node:
                text = "it sent a result that cannot be read: is its node.py of another release?"
                result = lost(node, hosts, text, agent.elapsed_s())
            found.append(result)
    return found


def lost(node: int, hosts: dict[int, str], text: str, at: float) -> Result:
    """The result of a node that sends none."""
    return Result(node, hosts.get(node, "?"), EXIT_FAILED, message=text, at=at)


def run_member(args: argparse.Namespace, signals: Signals) -> int:
    """The life of any other node; the exit code that node 0 decided."""
    link, go = join(args, signals)
    if "spare" in go:
        return wait_out(link, args)
    args.nnodes, args.node_rank = int(go["nnodes"]), int(go["node_rank"])
    agent = Agent(args, go, signals)
    return echoed(args, agent, lambda: take_part(link, agent))


def wait_out(link: Link, args: argparse.Namespace) -> int:
    """The life of a node that the attempt has no use for: it leaves with the others, since a node
    that leaves before would count as lost. A signal changes nothing: the others have it too."""
    say("the attempt goes without this node; waiting for its end")
    for message in follow(link, float("inf")):
        if message is None or "end" in message:
            break
    code = int(message["end"]) if message else code_without_head(args)
    say(f"leaving with {code}: {'the attempt has ended' if message else 'node 0 was lost'}")
    return code


def take_part(link: Link, agent: Agent) -> int:
    """Follows node 0 until it says "end" or is lost, with torchrun ended in each case."""
    result, reason, end, limit = None, "", Message(), float("inf")
    for message in follow(link, float("inf")):
        if message is None or "end" in message:
            end = message or end
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
    code = int(end["end"]) if end else code_without_head(agent.args)
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


def report_gpu_holders(host: str) -> None:
    """Says which processes hold memory of this node's GPUs before any rank has been started: what
    another job, or a node that was cut off, has left. No answer hinders nothing."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not gpus or not shutil.which("nvidia-smi"):
        return
    query = ["nvidia-smi", f"--id={gpus}", "--query-compute-apps=pid,used_memory,name"]
    try:
        text = subprocess.run(
            [*query, "--format=csv,noheader"],
            stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=GPU_QUERY_TIMEOUT_S,
        ).stdout.decode(errors="replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        say(f"{host}: nvidia-smi does not say who holds memory of GPU {gpus}: {error}")
        return
    for line in text.splitlines()[:20]:
        pid, memory, name = (*line.split(", ", 2), "", "")[:3]
        say(f"{host}: process {pid} ({name!r}) is none of this job and holds {memory} of a GPU")


def leave_if_done(args: argparse.Namespace) -> None:
    if (Path(args.run_dir) / "DONE").exists():
        raise Leave(EXIT_DONE, "the run is finished (DONE is there): nothing to start")


# --- started again or not, where nobody else counts --------------------------------------------


def leaving_code(args: argparse.Namespace, code: int) -> tuple[int, str]:
    """The code that this node leaves an attempt with, and why the run is given up ("" if it is to
    be started again, is finished, or others count). What is in the run folder decides, so that a
    node that has lost node 0 finds the same."""
    if not args.repeat_codes_from or code == EXIT_DONE:
        return code, ""
    why = "a configuration error is never repeated" if code == EXIT_CONFIGURATION else spent(args)
    if why:
        give_up(args, why)
        return code if code == EXIT_CONFIGURATION else EXIT_FAILED, why
    return code + int(args.repeat_codes_from), ""


def code_without_head(args: argparse.Namespace) -> int:
    """The code of a node that has lost node 0 in an attempt."""
    if not args.repeat_codes_from:
        return EXIT_FAILED
    run_dir = Path(args.run_dir)
    code = end_code(run_dir / "attempts" / str(newest_attempt(run_dir)))
    return leaving_code(args, code)[0]


def end_code(attempt_dir: Path) -> int:
    """The code that an attempt ended with; one that says nothing has failed."""
    code = read_json(attempt_dir / "end.json").get("code")
    known = (EXIT_DONE, EXIT_REQUEUE, EXIT_CONFIGURATION, EXIT_HANG)
    return next((number for number in known if number == code), EXIT_FAILED)


def leave_if_spent(args: argparse.Namespace) -> None:
    """Node 0's look before it begins an attempt: of the last one it may have told nothing."""
    if args.repeat_codes_from and (why := spent(args)):
        give_up(args, why)
        raise Leave(EXIT_FAILED, f"no new attempt: {why}", decided=True)


def counted(args: argparse.Namespace) -> list[Path]:
    """The folders of the attempts that count, the oldest first: those since this submission's
    first. Where a pod is told none, those since the run was given up: it was submitted again."""
    run_dir = Path(args.run_dir)
    attempts = [(n, run_dir / "attempts" / str(n)) for n in attempt_numbers(run_dir)]
    if not args.submission:
        given_up_after = number_in(read_json(run_dir / GIVEN_UP_FILE), "attempt")
        return [folder for n, folder in attempts if n > given_up_after]
    own = (n for n, folder in attempts if begun_by(folder) == args.submission)
    first = next(own, float("inf"))
    return [folder for n, folder in attempts if n >= first]


def begun_by(attempt_dir: Path) -> object:
    """The submission that has begun an attempt, None where that is not known."""
    return read_json(attempt_dir / "owner.json").get("submission")


def spent(args: argparse.Namespace) -> str:
    """Why there is to be no new attempt by the attempts so far, "" if there may be one."""
    folders = counted(args)
    codes = [end_code(folder) for folder in folders]
    failures = sum(code in (EXIT_FAILED, EXIT_HANG) for code in codes)
    requeues = sum(code == EXIT_REQUEUE for code in codes)
    age_s = time.time() - begun_at(folders[0]) if folders else 0.0
    if failures > args.failures:
        return f"failure {failures}, and attempts.failures is {args.failures}"
    if requeues > args.requeues:
        return f"requeue {requeues}, and attempts.requeues is {args.requeues}"
    if 0 < args.deadline_s < age_s:
        return f"the first attempt began {age_s:.0f} s ago, and attempts.deadline is over"
    return ""


def begun_at(attempt_dir: Path) -> float:
    """When an attempt began, in seconds since 1970; one that could not say who it is has its
    folder."""
    with contextlib.suppress(OSError):
        return modified(attempt_dir / "owner.json") or attempt_dir.stat().st_mtime
    return time.time()


def give_up(args: argparse.Namespace, why: str) -> None:
    """Notes that the run is given up, for the count of a later submission. Any node does: node 0
    may have been killed, and where no submission is known each node's leaving ends the run."""
    run_dir = Path(args.run_dir)
    try:
        said = {"version": 1, "attempt": newest_attempt(run_dir), "reason": why}
        write_json(run_dir / GIVEN_UP_FILE, said)
    except OSError as error:
        say(f"cannot write {run_dir / GIVEN_UP_FILE}: {error}")


def without_attempt(args: argparse.Namespace, leave: Leave) -> Leave:
    """The same with the code that a node leaves with where it has not begun an attempt."""
    if leave.decided or not args.repeat_codes_from or leave.code == EXIT_DONE:
        return leave
    code, reason = leave.code, leave.reason
    if code == EXIT_CONFIGURATION:
        give_up(args, reason)
    elif code == EXIT_REQUEUE:
        code += args.repeat_codes_from
    elif why := missed_too_often(args, reason):
        reason += f"; not started again: {why}"
    else:
        code += args.repeat_codes_from
    return Leave(code, reason, decided=True)


def missed_too_often(args: argparse.Namespace, reason: str) -> str:
    """Counts a start of this node that came to no attempt; why it was the last one, "" if it was
    not. Once they were too many they are forgotten if no new submission could be told from this."""
    path = missed_path(args)
    try:
        count, after = 1 + missed_starts(args), newest_attempt(Path(args.run_dir))
        is_last = count > args.failures
        kept = 0 if is_last and not args.submission else count
        said = {"version": 1, "submission": args.submission, "after": after, "count": kept}
        path.parent.mkdir(exist_ok=True)
        write_json(path, {**said, "host": args.host, "reason": reason})
    except OSError as error:
        return f"this start cannot be counted: {error}"
    return f"missed start {count}, and attempts.failures is {args.failures}" if is_last else ""


def missed_path(args: argparse.Namespace) -> Path:
    return Path(args.run_dir) / MISSED_DIR / f"node-{args.node_rank}.json"


def missed_starts(args: argparse.Namespace) -> int:
    """How often this node was started in vain by this submission since the newest attempt."""
    said = read_json(missed_path(args))
    is_own = said.get("submission", "") == args.submission
    is_new = said.get("after") == newest_attempt(Path(args.run_dir))
    return number_in(said, "count") if is_own and is_new else 0


def leave_if_missed(args: argparse.Namespace) -> None:
    """A node whose start was the last one has nobody to wait for when it is started all the same,
    as JobSet does where another node's end was the first that it saw."""
    if args.repeat_codes_from and (count := missed_starts(args)) > args.failures:
        text = f"missed start {count}, and attempts.failures is {args.failures}"
        raise Leave(EXIT_FAILED, f"no new attempt: {text}", decided=True)


def number_in(message: Message, key: str) -> int:
    """A whole number of a file, 0 where it has none there."""
    value = message.get(key)
    return value if isinstance(value, int) else 0


def modified(path: Path) -> float:
    """When a file was written, in seconds since 1970; 0 where there is none. It is opened for that,
    since a network file system may know the time of a closed one from a minute ago."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return 0.0


class LifeSign:
    """What node 0 shows of a running attempt to a node that waits for the next one."""

    def __init__(self, agent: Agent) -> None:
        self.path = agent.dir / ALIVE_FILE
        self.due = 0.0 if agent.args.repeat_codes_from else float("inf")
        self.every_s = min(PULSE_S, agent.args.start_timeout_s / 4)

    def show(self) -> None:
        """Touches the file if it is time."""
        if time.monotonic() > self.due:
            self.due = time.monotonic() + self.every_s
            with contextlib.suppress(OSError):  # a full disk: at worst a node counts its wait
                self.path.touch()


class OtherLife:
    """Tells a node that waits whether an attempt goes on without it: that is no missed start."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began, self.were_there = args, time.monotonic(), False
        self.seen = self._sign()

    def goes_on(self) -> bool:
        """Whether there was a new sign of life since the last call."""
        before, self.seen = self.seen, self._sign()
        self.were_there = self.were_there or self.seen != before
        return self.seen != before

    def check(self) -> None:
        """Raises Leave where such an attempt has ended and much of this node's time limit may be
        gone by waiting: started anew like the others, it has as much time as they."""
        long = time.monotonic() - self.began > self.args.start_timeout_s
        if (
            self.were_there
            and long
            and self.args.time_limit_s
            and self._newest("end.json").exists()
        ):
            text = "the attempt that this node has waited for is over: it starts anew, too"
            raise Leave(EXIT_REQUEUE, text)

    def _newest(self, name: str) -> Path:
        run_dir = Path(self.args.run_dir)
        return run_dir / "attempts" / str(newest_attempt(run_dir)) / name

    def _sign(self) -> float:
        return modified(self._newest(ALIVE_FILE)) if self.args.repeat_codes_from else 0.0


# --- command line ------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Leave(EXIT_CONFIGURATION, f"node.py: {message}")


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, checked; raises Leave."""
    parser = Parser(prog="node.py", allow_abbrev=False, description=__doc__)
    for name in ("run-dir", "head", "id", "workdir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument(
        "--address", default="", help="of this node; else that on the way to node 0"
    )
    for name in ("nnodes", "port"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--make-run-dir", action="store_true", help="where it is not there yet")
    parser.add_argument("--sizes", metavar="N,N", help="numbers of nodes that an attempt may have")
    parser.add_argument(
        "--join-grace-s",
        type=float,
        default=JOIN_GRACE_S,
        help="for more nodes, once there are enough",
    )
    rank = parser.add_mutually_exclusive_group(required=True)
    rank.add_argument("--node-rank", type=int)
    rank.add_argument("--node-rank-from", metavar="VARIABLE", help="of the environment")
    parser.add_argument("--node-rank-offset", type=int, default=0, help="added to that variable")
    parser.add_argument("--nproc-per-node", required=True, type=int, dest="nproc")
    for name in ("start-timeout-s", "shutdown-timeout-s"):
        parser.add_argument(f"--{name}", required=True, type=float)
    parser.add_argument("--gpus-per-node", type=int, default=0, help="that each node must have")
    parser.add_argument("--allow-loopback", action="store_true", help="all nodes on one machine")
    parser.add_argument("--echo", action="store_true", help="copy the ranks' logs to stdout")
    parser.add_argument("--entry", metavar="MODULE", help="its file is the program, run by Python")
    parser.add_argument("--direct", action="store_true", help="one of these for each rank")
    parser.add_argument("--local-rank-from", metavar="VARIABLE", help="of the environment")
    parser.add_argument("--local-world-size", type=int, default=1, help="ranks per node")
    add_restart_arguments(parser)
    add_network_arguments(parser)
    parser.add_argument("--agent", default="torch.distributed.run", help="module with its options")
    split = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:split])
    args.program, args.host = argv[split + 1 :], socket.gethostname()
    args.gpus = visible_gpus() if args.gpus_per_node else 0
    if args.entry:
        args.program = [sys.executable, module_file(args.entry), *args.program]
    if args.node_rank_from:
        args.node_rank = rank_from(args.node_rank_from) + args.node_rank_offset
    args.local_rank = rank_from(args.local_rank_from) if args.local_rank_from else 0
    args.address = args.address or own_address(args)
    args.rank_address, args.fault = args.address, ""
    args.sizes = sizes_of(args)
    if args.make_run_dir:
        make_run_dir(args.run_dir)
    if fault := check(args):
        raise Leave(EXIT_CONFIGURATION, f"node.py: {fault}")
    return args


def add_restart_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that are needed where nobody counts how often the run has been started."""
    parser.add_argument(
        "--repeat-codes-from",
        type=int,
        default=0,
        metavar="N",
        help="added to each code that asks for a new start; 1 then says that none is wanted",
    )
    parser.add_argument(
        "--submission", default="", help="whose attempts count; else those since a give-up"
    )
    for name in ("failures", "requeues"):
        parser.add_argument(f"--{name}", type=int, default=0, help="attempts that may end so")
    for name, text in (("deadline-s", "after the first attempt"), ("time-limit-s", "of one start")):
        parser.add_argument(f"--{name}", type=float, default=0, help=f"{text}; 0: none")


def add_network_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that say how the ranks talk to one another."""
    for name, text in (
        ("backend", "of torch.distributed, for the variables of its libraries"),
        ("interface", "that the ranks use, by its exact name"),
        ("host-suffix", "added to this node's name, it is that of the address the ranks use"),
    ):
        parser.add_argument(f"--{name}", default="", help=text)
    parser.add_argument("--address-family", choices=FAMILIES, help="of the address the ranks use")
    parser.add_argument("--source", metavar="FILE", help="a script that sets variables, for bash")
    parser.add_argument(
        "--library-path", action="append", default=[], help="in front of LD_LIBRARY_PATH"
    )
    parser.add_argument(
        "--preflight",
        type=lambda text: text.split(","),
        default=[],
        metavar="ITEM,ITEM",
        help=f"what is looked at before the run: {', '.join(PREFLIGHT)}",
    )
    parser.add_argument("--shared-gpus", action="store_true", help="ranks may share a GPU's slices")


def make_run_dir(path: str) -> None:
    """Makes the run folder, which all nodes may do at once; raises Leave."""
    try:
        if os.path.isabs(path):
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        text = f"cannot make the run folder: {error}; user {os.getuid()}, group {os.getgid()} must"
        text += " be allowed to write there"
        raise Leave(EXIT_CONFIGURATION, f"node.py: {text}") from None


def check_restarts(args: argparse.Namespace) -> str:
    """What is wrong with the arguments that say whether there is a new start, or ""."""
    numbers = (args.failures, args.requeues, args.deadline_s, args.time_limit_s)
    if min(numbers) < 0:
        return "--failures, --requeues, --deadline-s and --time-limit-s must be 0 or more"
    if not args.repeat_codes_from:
        return "--failures, --requeues, --deadline-s need --repeat-codes-from" * any(numbers[:3])
    if not EXIT_HANG < args.repeat_codes_from <= 255 - EXIT_HANG:
        return f"--repeat-codes-from must be {EXIT_HANG + 1} to {255 - EXIT_HANG}"
    return ""


def check_network(args: argparse.Namespace) -> str:
    """What is wrong with the arguments about the network, or ""."""
    if unknown := [item for item in args.preflight if item not in PREFLIGHT]:
        return f"--preflight {unknown[0]!r}: there are {', '.join(PREFLIGHT)}"
    if args.source and not os.path.isabs(args.source):
        return f"--source {args.source!r} must be absolute"
    return ""


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
    if args.sizes[0] < 1 or args.sizes[-1] != args.nnodes or args.join_grace_s < 0:
        return f"--sizes must be numbers from 1 up to {args.nnodes}, and --join-grace-s from 0 s"
    if fault := check_direct(args) or check_restarts(args) or check_network(args):
        return fault
    if args.nnodes > args.local_world_size and not args.allow_loopback:
        # Node 0 may not know its own name, as in a pod: the others come by it, and it listens on
        # its address.
        for name in (args.address,) if args.node_rank == 0 else (args.head, args.address):
            if is_loopback(name):
                return f"on {args.host} {name} is a loopback address: no other machine can reach it"
    return ""


def sizes_of(args: argparse.Namespace) -> list[int]:
    """The numbers of nodes that an attempt may have, the smallest first; raises Leave."""
    words = (args.sizes or str(args.nnodes)).split(",")
    if not all(word.isdecimal() and len(word) < 9 for word in words):
        raise Leave(EXIT_CONFIGURATION, f"node.py: --sizes {args.sizes!r}: write it as 1,2,4")
    return sorted(map(int, words))


def check_direct(args: argparse.Namespace) -> str:
    """What is wrong with the arguments of --direct, or ""."""
    size = args.local_world_size
    if not args.direct:
        return "--local-world-size and --local-rank-from need --direct" if size != 1 else ""
    if len(args.sizes) > 1:
        return "--direct has one size: give as many ranks as are started"
    if args.nproc != 1 or size < 1 or args.nnodes % size:
        text = "--direct needs --nproc-per-node 1 and as many ranks on each node, not"
        return f"{text} {args.nnodes} ranks at {size} per node"
    if args.node_rank % size != args.local_rank:
        text = f"rank {args.node_rank} is number {args.local_rank} on its node of {size} ranks"
        return f"{text}: ranks must be placed in blocks (srun --distribution=block)"
    return ""


def module_file(name: str) -> str:
    """The file of an installed module, without running any of it; raises Leave."""
    package, _, module = name.rpartition(".")
    spec = importlib.util.find_spec(package or module)
    if spec is None or spec.origin is None:
        text = f"{sys.executable} has no module {name}: install the trainer in its environment"
        raise Leave(EXIT_CONFIGURATION, f"node.py: {text}")
    return os.path.join(os.path.dirname(spec.origin), f"{module}.py") if package else spec.origin


def rank_from(variable: str) -> int:
    """This node's or rank's number as the scheduler's environment has it; raises Leave."""
    value = os.environ.get(variable, "")
    if not value.isdecimal():
        text = f"${variable} is {value!r} here and not the number of a node or rank"
        raise Leave(EXIT_CONFIGURATION, f"node.py: {text}")
    return int(value)


def own_address(args: argparse.Namespace) -> str:
    """This node's address on the way to node 0 (connecting UDP sends nothing); raises Leave."""
    if args.node_rank == 0:
        return str(args.head)
    try:
        found = socket.getaddrinfo(args.head, args.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise no_way(args, error) from None


def no_way(args: argparse.Namespace, error: OSError) -> Leave:
    """What a node leaves with that has no way to node 0: with what is wrong with itself, if it is
    to use an interface or a name, and has it not."""
    text = f"no way from {args.host} to node 0 at {args.head}: {error}"
    try:
        if args.interface or args.host_suffix:
            rank_address(args)
    except ValueError as fault:
        return Leave(EXIT_CONFIGURATION, f"{text}: {args.host}: {fault}")
    return Leave(EXIT_FAILED, text)


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
        signals = Signals()
        args = parse(argv)
        signals.limit(args.time_limit_s, args.shutdown_timeout_s)
        return live(args, signals)
    except Leave as leave:
        say(leave.reason)
        return leave.code


def live(args: argparse.Namespace, signals: Signals) -> int:
    """The life of this node, to its exit code; raises Leave."""
    try:
        leave_if_done(args)
        leave_if_missed(args)
        args.fault = make_ready(args)
        if args.local_rank == 0:
            report_gpu_holders(args.host)
        return run_head(args, signals) if args.node_rank == 0 else run_member(args, signals)
    except Leave as leave:
        raise without_attempt(args, leave) from None
    except OSError as error:  # a folder that cannot be written, no memory for a process
        raise without_attempt(args, Leave(EXIT_FAILED, f"node.py: {error}")) from None


def command() -> NoReturn:
    """The console script `orchestrate-node`, for an image that has it."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
