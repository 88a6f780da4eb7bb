"""The launcher's side of docs/contract.md: names of variables, files and exit codes.

trainer/contract.py and trainer/node.py repeat what they need of it; a test holds them equal to the
page. Only the standard library is imported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

VERSION = 1

ENV_RUN_DIR = "ORCHESTRATE_RUN_DIR"
ENV_ATTEMPT = "ORCHESTRATE_ATTEMPT"
ENV_CHECKPOINT_DIR = "ORCHESTRATE_CHECKPOINT_DIR"
ENV_WORKDIR = "ORCHESTRATE_WORKDIR"

JOB_FILE = "job.yaml"
RECEIPT_FILE = "receipt.json"
PLAN_FILE = "plan.json"
RENDERED_DIR = "rendered"
ATTEMPTS_DIR = "attempts"
OWNER_FILE = "owner.json"
DRAIN_FILE = "drain"
HANG_FILE = "hang"
HANGS_DIR = "hangs"
OUTCOME_FILE = "outcome.json"
ERRORS_DIR = "errors"
END_FILE = "end.json"
LOGS_DIR = "logs"
CHECKPOINTS_DIR = "checkpoints"
METRICS_FILE = "metrics.jsonl"
LEDGER_FILE = "goodput.jsonl"
METRICS_TAG = "[metrics] "
DONE_FILE = "DONE"
GRACE_FILE = "grace.json"
GRACE_FACTOR = 10  # times timeouts.shutdown, the longest that grace.json may ask for

OUTCOME_DONE = "done"
OUTCOME_DRAINED = "drained"
KIND_CONFIGURATION = "configuration"
KIND_FAILURE = "failure"
KIND_HANG = "hang"

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_REQUEUE = 75
EXIT_CONFIGURATION = 78
EXIT_HANG = 79
EXIT_NAMES = {
    EXIT_DONE: "done",
    EXIT_FAILED: "failed",
    EXIT_REQUEUE: "requeue",
    EXIT_CONFIGURATION: "configuration",
    EXIT_HANG: "hang",
}


def drain_limit_s(shutdown_timeout_s: float, grace: bytes) -> float:
    """Seconds from the request to stop until node.py ends the ranks.

    grace: contents of grace.json; what is no such file, or empty, leaves it at the timeout.
    """
    try:
        needed_s = float(json.loads(grace)["seconds"])
    except (ValueError, TypeError, KeyError):
        return shutdown_timeout_s
    return max(shutdown_timeout_s, min(needed_s, GRACE_FACTOR * shutdown_timeout_s))


@dataclass(frozen=True)
class RunPaths:
    """Paths in the run folder `root`."""

    root: Path

    @property
    def job(self) -> Path:
        return self.root / JOB_FILE

    @property
    def receipt(self) -> Path:
        return self.root / RECEIPT_FILE

    @property
    def rendered(self) -> Path:
        return self.root / RENDERED_DIR

    @property
    def attempts(self) -> Path:
        return self.root / ATTEMPTS_DIR

    @property
    def checkpoints(self) -> Path:
        return self.root / CHECKPOINTS_DIR

    @property
    def metrics(self) -> Path:
        return self.root / METRICS_FILE

    @property
    def ledger(self) -> Path:
        return self.root / LEDGER_FILE

    @property
    def grace(self) -> Path:
        """How many seconds a stop may take, as the program has measured it."""
        return self.root / GRACE_FILE

    @property
    def done(self) -> Path:
        return self.root / DONE_FILE

    def attempt(self, number: int) -> Path:
        """Folder of an attempt; `number` counts from 1."""
        return self.attempts / str(number)

    def drain(self, number: int) -> Path:
        """The file whose existence asks attempt `number` to checkpoint and stop."""
        return self.attempt(number) / DRAIN_FILE

    def end(self, number: int) -> Path:
        return self.attempt(number) / END_FILE

    def outcome(self, number: int) -> Path:
        return self.attempt(number) / OUTCOME_FILE

    def log(self, number: int, rank: int) -> Path:
        """Standard output and error of `rank` in attempt `number`."""
        return self.attempt(number) / LOGS_DIR / f"rank-{rank:05}.log"

    def error(self, number: int, rank: int) -> Path:
        return self.attempt(number) / ERRORS_DIR / f"rank-{rank:05}.json"

    def newest_attempt(self) -> int:
        """The highest attempt that has been claimed; 0 if there is none."""
        if not self.attempts.is_dir():
            return 0
        names = (path.name for path in self.attempts.iterdir())
        return max((int(name) for name in names if name.isdecimal()), default=0)
