"""The program's side of docs/contract.md, and the only reader of os.environ in this package.

The constants repeat that page; a test holds them equal to it and to orchestrator/contract.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENV_RUN_DIR = "ORCHESTRATE_RUN_DIR"
ENV_ATTEMPT = "ORCHESTRATE_ATTEMPT"
ENV_CHECKPOINT_DIR = "ORCHESTRATE_CHECKPOINT_DIR"
ENV_WORKDIR = "ORCHESTRATE_WORKDIR"

ATTEMPTS_DIR = "attempts"
CHECKPOINTS_DIR = "checkpoints"
ERRORS_DIR = "errors"
DRAIN_FILE = "drain"
HANG_FILE = "hang"
HANGS_DIR = "hangs"
NETWORK_DIR = "network"
OUTCOME_FILE = "outcome.json"
METRICS_FILE = "metrics.jsonl"
GRACE_FILE = "grace.json"
LEDGER_FILE = "goodput.jsonl"
DONE_FILE = "DONE"
METRICS_TAG = "[metrics] "

OUTCOME_DONE = "done"
OUTCOME_DRAINED = "drained"
KIND_CONFIGURATION = "configuration"
KIND_FAILURE = "failure"
KIND_HANG = "hang"
VERSION = 1

# By which torch 2.13 knows a variable, too: c10d's ProcessGroupNCCL.hpp, FlightRecorder.hpp.
OLDER_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}


class ConfigurationError(Exception):
    """A fault in what the user gave: it would happen again, so the attempt is never repeated."""


class Superseded(RuntimeError):
    """A newer attempt of this run exists, so this one may not publish anything."""


@dataclass(frozen=True)
class Contract:
    """What the launcher told this rank.

    rank, local_rank, world_size and num_nodes are torchrun's; attempt counts from 1; the folders
    are absolute.
    """

    rank: int
    local_rank: int
    world_size: int
    attempt: int
    run_dir: Path
    checkpoint_dir: Path
    workdir: Path
    num_nodes: int = 1

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Contract:
        """Read the variables of the contract.

        Raises ConfigurationError that names every variable that is missing or not a number.
        """
        faults: list[str] = []
        contract = cls(
            rank=_number(environ, "RANK", 0, faults),
            local_rank=_number(environ, "LOCAL_RANK", 0, faults),
            world_size=_number(environ, "WORLD_SIZE", 1, faults),
            attempt=_number(environ, ENV_ATTEMPT, 1, faults),
            run_dir=_folder(environ, ENV_RUN_DIR, faults),
            checkpoint_dir=_folder(environ, ENV_CHECKPOINT_DIR, faults),
            workdir=_folder(environ, ENV_WORKDIR, faults),
            num_nodes=_number({"GROUP_WORLD_SIZE": "1", **environ}, "GROUP_WORLD_SIZE", 1, faults),
        )
        if faults:
            raise ConfigurationError(
                "environment: " + "; ".join(faults) + ". They are set by the launcher: start the"
                " job with 'orchestrate submit', or set them as docs/contract.md says."
            )
        return contract

    @property
    def attempt_dir(self) -> Path:
        """Folder of this attempt."""
        return self.run_dir / ATTEMPTS_DIR / str(self.attempt)

    @property
    def drain_file(self) -> Path:
        """Its existence asks for a checkpoint at the next step boundary, then a stop."""
        return self.attempt_dir / DRAIN_FILE

    @property
    def hang_file(self) -> Path:
        """Its existence says that the attempt hangs and is being ended."""
        return self.attempt_dir / HANG_FILE

    @property
    def hangs_dir(self) -> Path:
        """Where each rank was when the attempt hung."""
        return self.attempt_dir / HANGS_DIR

    @property
    def network_dir(self) -> Path:
        """What the communication library says of itself."""
        return self.attempt_dir / NETWORK_DIR

    @property
    def metrics_file(self) -> Path:
        """JSON lines of rank 0."""
        return self.run_dir / METRICS_FILE

    @property
    def grace_file(self) -> Path:
        """How many seconds a stop may take, as the program has measured it."""
        return self.run_dir / GRACE_FILE

    @property
    def ledger_file(self) -> Path:
        """JSON lines of rank 0: where the time went."""
        return self.run_dir / LEDGER_FILE

    def enter_workdir(self) -> None:
        """Make relative paths relative to the user's folder; its modules come last on the path."""
        if not self.workdir.is_dir():
            raise ConfigurationError(
                f"{ENV_WORKDIR}: {self.workdir} is no folder on {socket.gethostname()}; "
                "it must be visible at the same path on every node"
            )
        os.chdir(self.workdir)
        sys.path.append(str(self.workdir))

    def is_newest_attempt(self) -> bool:
        """Whether no attempt with a higher number has been claimed."""
        folder = self.run_dir / ATTEMPTS_DIR
        names = os.listdir(folder) if folder.is_dir() else []
        return all(int(name) <= self.attempt for name in names if name.isdecimal())

    def is_done(self) -> bool:
        """Whether the run is finished and must not run again."""
        return (self.run_dir / DONE_FILE).exists()

    def done_step(self) -> int:
        """Steps of the finished run, as its DONE marker says; 0 if it does not."""
        try:
            return int(json.loads((self.run_dir / DONE_FILE).read_bytes())["step"])
        except (OSError, ValueError, TypeError, KeyError):
            return 0

    def write_outcome(self, outcome: str, step: int) -> None:
        """Write how the program ended after `step` optimizer steps; for rank 0, agreed by all."""
        content = {"version": VERSION, "outcome": outcome, "step": step}
        write_json(self.attempt_dir / OUTCOME_FILE, content)

    def write_grace(self, seconds: float) -> None:
        """Tell the launcher how long a stop may take; for rank 0."""
        write_json(self.grace_file, {"version": VERSION, "seconds": seconds})

    def write_done(self, step: int) -> None:
        """Mark the run as finished after `step` optimizer steps; for rank 0."""
        content = {"version": VERSION, "attempt": self.attempt, "step": step}
        write_json(self.run_dir / DONE_FILE, content)

    def write_error(self, kind: str, message: str) -> None:
        """Write why this rank failed; kind is KIND_CONFIGURATION or KIND_FAILURE."""
        self.write_error_of(self.rank, socket.gethostname(), kind, message)

    def write_error_of(self, rank: int, host: str, kind: str, message: str) -> None:
        """Write why a rank failed that may not be able to say so itself."""
        content = {
            "version": VERSION, "kind": kind, "rank": rank, "host": host, "message": message,
        }  # fmt: skip
        write_json(self.attempt_dir / ERRORS_DIR / f"rank-{rank:05d}.json", content)


def record_collectives(entries: int) -> None:
    """Let torch's flight recorder keep the last `entries` collectives, unless the user has said
    how many; before the process group is made. (torch 2.13, FlightRecorder.hpp)
    """
    suggest_variables({"TORCH_FR_BUFFER_SIZE": str(entries)})


def suggest_variables(variables: Mapping[str, str]) -> None:
    """Set variables for the libraries in this process, unless the user has set them."""
    for name, value in variables.items():
        if OLDER_NAMES.get(name, name) not in os.environ:
            os.environ.setdefault(name, value)


def given_variable(name: str) -> str:
    """The value of a variable, "" where it is not set."""
    return os.environ.get(name, "")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object aside, sync it and rename it, so that no reader sees a half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def create_once(path: Path, content: Mapping[str, Any]) -> bool:
    """Make a file that one rank alone can make, and its folder; False if another one has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(content, file)
    except FileExistsError:
        return False
    return True


def _number(environ: Mapping[str, str], name: str, least: int, faults: list[str]) -> int:
    text = environ.get(name, "")
    if text.isdecimal() and int(text) >= least:
        return int(text)
    given = f"is {text!r}" if text else "is not set"
    faults.append(f"{name} {given} (allowed: a whole number from {least})")
    return least


def _folder(environ: Mapping[str, str], name: str, faults: list[str]) -> Path:
    path = Path(environ.get(name, ""))
    if not path.is_absolute():
        given = f"is {str(path)!r}" if environ.get(name) else "is not set"
        faults.append(f"{name} {given} (allowed: an absolute path)")
    return path
