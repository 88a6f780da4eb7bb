"""What the local backend and its supervisor tell one another by files in the run folder."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import contract
from orchestrator.backends import processes
from orchestrator.errors import BackendError

RECORD_FILE = "supervisor.json"


@dataclass(frozen=True)
class Launch:
    """rendered/launch.json."""

    name: str
    num_nodes: int
    ranks_per_node: int
    failures: int
    requeues: int
    deadline_s: float | None
    start_timeout_s: float
    shutdown_timeout_s: float
    node_sizes: tuple[int, ...] = ()
    queue_timeout_s: float | None = None
    chosen: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of nodes that an attempt may have, the smallest first."""
        return tuple(self.node_sizes) or (self.num_nodes,)

    @classmethod
    def read(cls, path: Path) -> Launch:
        """Raises BackendError if the file is not what this version renders."""
        try:
            content = json.loads(path.read_bytes())
            version = content.pop("version")
            launch = cls(**content)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise BackendError(f"{path}: not a launch file of this version: {error}") from None
        if version != 1:
            raise BackendError(f"{path}: version {version!r}; this release reads version 1")
        return launch


@dataclass(frozen=True)
class Ended:
    """One attempt that has ended; attempt 0 is one that no node has claimed.

    nodes_lost: how many nodes were taken down while it ran.
    """

    attempt: int
    code: int
    reason: str
    nodes_lost: int = 0

    @property
    def is_requeue(self) -> bool:
        """Whether it counts against `requeues`: it was not the program that failed."""
        return self.code == contract.EXIT_REQUEUE or self.nodes_lost > 0


@dataclass(frozen=True)
class Record:
    """supervisor.json: who looks after the run, and how it stands.

    Args:
        attempt: the newest, counted from the first one of the run folder.
        ended: the attempts of this submit that have ended; the budgets of the job file, and
            `attempts.deadline`, are counted from this submit.
        drained: False where a stop was asked for and the ranks were killed before they had made
            their checkpoint, so that the steps since the last one are lost.
    """

    pid: int
    start_time: int
    boot_id: str
    host: str
    state: str
    attempt: int = 0
    reason: str = ""
    ended: tuple[Ended, ...] = ()
    drained: bool = True
    version: int = 1

    @classmethod
    def of_this_process(cls) -> Record:
        """The first record of whoever calls this, before anything has started."""
        me = processes.this_process()
        return cls(me.pid, me.start_time, processes.boot_id(), socket.gethostname(), "PENDING")

    @property
    def process(self) -> processes.Process:
        return processes.Process(self.pid, self.start_time)

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor still runs on this machine."""
        return self.boot_id == processes.boot_id() and self.process.is_alive()

    def write(self, run_dir: Path) -> None:
        write_json(run_dir / RECORD_FILE, asdict(self))

    @classmethod
    def read(cls, run_dir: Path) -> Record | None:
        """The record of a run folder; None if there is none that can be read."""
        try:
            content = json.loads((run_dir / RECORD_FILE).read_bytes())
            ended = tuple(Ended(**entry) for entry in content.pop("ended"))
            return cls(**content, ended=ended)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file aside, sync and rename it: a reader sees all of it or nothing.

    Raises OSError and leaves what was there before, as on a full disk.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
