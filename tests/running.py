"""What tests that start real processes share: nodes, awaited conditions, who is still there, and
what a training run has come to."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.backends.processes import Process, boot_id, descendants, find
from orchestrator.backends.record import Record

PROGRAMS = Path(__file__).resolve().parent / "programs"
NODE_PY = Path(__file__).resolve().parent.parent / "trainer" / "node.py"
DEADLINE_S = 60.0


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Return as soon as the condition holds; fail if it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def wait_for_end(processes: list[Process]) -> None:
    """Return when all of them have ended."""
    wait_until(
        lambda: not any(p.is_alive() for p in processes),
        f"the end of {[p.pid for p in processes]}",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def standing_run(root: Path, name: str, state: str = "DONE") -> Path:
    """A run folder of the local backend whose supervisor would be this process."""
    run_dir = root / "runs" / name
    run_dir.mkdir(parents=True)
    (run_dir / "receipt.json").write_text(json.dumps({"version": 1, "backend": "local"}))
    me = find(os.getpid())
    assert me is not None
    Record(me.pid, me.start_time, boot_id(), "here", state, 1).write(run_dir)
    return run_dir


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    assert isinstance(content, dict)
    return content


def losses(run_dir: Path) -> dict[int, float]:
    """The training loss of every step; of a step that was repeated, the last one."""
    found: dict[int, float] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        part = entry.get("losses", [])
        found.update(enumerate(part, start=entry["step"] - len(part) + 1))
    return found


def state_sha256(run_dir: Path) -> dict[str, str]:
    """SHA-256 of each tensor of the model and of the optimizer in the newest checkpoint."""
    import torch

    folder = max((run_dir / "checkpoints").glob("step-*"))
    found: dict[str, str] = {}
    for name in ("model.pt", "optimizer.pt"):
        _hash(torch.load(folder / name, weights_only=True), f"{folder.name[:14]}/{name}", found)
    return found


def _hash(value: Any, name: str, found: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _hash(part, f"{name}.{key}", found)
    elif isinstance(value, list):
        _hash(dict(enumerate(value)), name, found)
    else:
        data = value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode()
        found[name] = hashlib.sha256(data).hexdigest()


def rank_process(root: int, rank: int) -> Process:
    """The process of a rank below `root`."""
    for process in descendants(root):
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if f"RANK={rank}".encode() in variables and b"program.py" in command:
            return process
    raise AssertionError(f"no rank {rank} below {root}")


@dataclass
class Nodes:
    """Nodes of one attempt, each started by node.py on a loopback address of its own."""

    run_dir: Path
    workdir: Path
    mode: str = "done"
    nnodes: int = 2
    nproc: int = 2
    agent: str = "stub_agent"
    also: tuple[str, ...] = ()  # more arguments of node.py
    direct: bool = False  # one node.py for each rank, two of them on each node
    program: tuple[str, ...] = (sys.executable, str(PROGRAMS / "program.py"))
    port: int = field(default_factory=free_port)
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def command(self, node: int, **changes: object) -> list[str]:
        options: dict[str, object] = {
            "run-dir": self.run_dir,
            "workdir": self.workdir,
            "nnodes": self.nnodes,
            "node-rank": node,
            "nproc-per-node": self.nproc,
            "head": "127.0.0.1",
            "port": self.port,
            "address": f"127.0.0.{node + 1}",
            "id": "job-1",
            "start-timeout-s": 30,
            "shutdown-timeout-s": 20,
            "agent": self.agent,
        }
        options |= {name.replace("_", "-"): value for name, value in changes.items()}
        if self.direct:
            options |= {"local-world-size": 2, "local-rank-from": "LOCAL_NUMBER"}
        flat = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        flags = ["--allow-loopback", *self.also, *(["--direct"] if self.direct else [])]
        return [sys.executable, str(NODE_PY), *flat, *flags, "--", *self.program, self.mode]

    def start(self, *nodes: int, **changes: object) -> None:
        path = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
        for node in nodes:
            with self.log(node).open("ab") as log:
                self.started[node] = subprocess.Popen(
                    self.command(node, **changes),
                    env=os.environ
                    | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LOCAL_NUMBER": str(node % 2)},
                    stdout=log,
                    stderr=log,
                )

    def log(self, node: int) -> Path:
        return self.run_dir / f"node-{node}.log"

    def codes(self) -> dict[int, int]:
        """Exit codes of all nodes, once they have left."""
        return {n: process.wait(timeout=DEADLINE_S) for n, process in self.started.items()}

    def wait_ready(self, attempt: int = 1) -> None:
        """Return when every rank is in its program."""
        for rank in range(self.nnodes * self.nproc):
            ready = self.run_dir / "attempts" / str(attempt) / f"ready-{rank}"
            wait_until(ready.exists, f"{ready}\n{self.all_logs()}")

    def all_logs(self) -> str:
        return "\n".join(self.log(n).read_text(errors="replace") for n in self.started)

    def tree(self) -> list[Process]:
        """All processes of these nodes that live now."""
        found: list[Process] = []
        for process in self.started.values():
            found += [p for p in (find(process.pid), *descendants(process.pid)) if p]
        return found

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.tree():
            process.send(signal.SIGKILL)
        for started in self.started.values():
            started.wait(timeout=DEADLINE_S)
