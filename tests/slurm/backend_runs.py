"""What tests of the Slurm backend share: a stand-in for the batch script, runs of one cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends.base import After, Handle, State, Status, Submission
from orchestrator.backends.site import COMMAND_TIMEOUT_S, Completed, LocalSite
from orchestrator.backends.slurm import SlurmBackend
from running import wait_until
from slurm.cluster import Cluster

# What templates/slurm/job.sh.j2 promises, in a few lines: it claims an attempt, ends it, and after
# a cancel lets Slurm say so.
SCRIPT = """#!/bin/bash
#SBATCH --time=10
{directives}
run=$1
n=$(ls "$run/attempts" 2>/dev/null | wc -l)
attempt=$run/attempts/$((n + 1))
mkdir -p "$attempt"
echo "{{\\"job\\": \\"$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}\\"}}" >"$attempt/owner.json"
echo '{{"step": 3}}' >>"$run/metrics.jsonl"
leave() {{ # CODE REASON
  echo "{{\\"code\\": $1, \\"reason\\": \\"$2\\"}}" >"$attempt/end.json"
  [[ $1 != 0 ]] || touch "$run/DONE"
  if [[ $1 != 0 && -e $run/cancel ]]; then scancel "$SLURM_JOB_ID"; fi
  exit "$1"
}}
await() {{ # a file in the attempt's folder
  until [[ -e $attempt/$1 ]]; do sleep 0.1; done
}}
pwd
{body}
"""
DRAINS = "trap 'leave 75 drained' TERM\ntouch \"$attempt/ready\"\nawait never"
DONE = "leave 0 done"
WAITS = 'touch "$attempt/ready"\nawait go\nleave 0 done'


@dataclass(frozen=True)
class Files:
    name: str
    files: dict[str, str]


def files(body: str, name: str = "demo", *directives: str) -> Files:
    lines = "\n".join(f"#SBATCH {directive}" for directive in directives)
    launch = {"version": 1, "name": name, "shutdown_timeout_s": 20}
    return Files(
        name,
        {
            "job.sh": SCRIPT.format(directives=lines, body=body),
            "launch.json": json.dumps(launch),
            "trainer.json": json.dumps({"steps": 7}),
        },
    )


@dataclass
class CountingSite(LocalSite):
    """This machine, with a note of Slurm's commands that were run."""

    environ: Mapping[str, str]
    ran: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Completed:
        if argv[0] == "sh" and len(argv) > 4 and argv[4].startswith("s"):
            self.ran.append(argv[4])
        return super().run(argv, stdin=stdin, timeout_s=timeout_s)


@dataclass
class Runs:
    """Runs of one cluster below one root."""

    cluster: Cluster
    root: Path
    workdir: Path

    @property
    def backend(self) -> SlurmBackend:
        return SlurmBackend(LocalSite(self.cluster.environ))

    def submit(
        self,
        body: str,
        name: str = "demo",
        *directives: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        return self.backend.submit(
            files(body, name, *directives),
            runs_root=self.root,
            workdir=self.workdir,
            job_text="name: demo\n",
            fresh=fresh,
            after=after,
        )

    def start(self, body: str, name: str = "demo", *directives: str) -> Handle:
        """Submit a run that must start, and return its handle."""
        submission = self.submit(body, name, *directives)
        assert submission.started, submission.message
        return submission.handle

    def status(self, handle: Handle) -> Status:
        return self.backend.status([handle])[0]

    def wait_for(self, handle: Handle, *states: State) -> Status:
        wait_until(lambda: self.status(handle).state in states, f"{states}, not {handle}")
        return self.status(handle)

    def wait_ready(self, handle: Handle, attempt: int = 1) -> None:
        ready = handle.run_dir / f"attempts/{attempt}/ready"
        wait_until(ready.exists, f"{ready}: {self.status(handle)}")


# Names of a runs root: an ordinary and a hostile one.
NAMES = ["runs", "r u'n\"s %j%%\n$(x)`y` k=v,w ü#!"]


def runs_below(cluster: Cluster, folder: Path, name: str = "runs") -> Runs:
    """Runs with a root of this name and a work folder of a like one."""
    workdir = folder / f"work {name}"
    workdir.mkdir()
    return Runs(cluster, folder / name, workdir)


def job(handle: Handle) -> str:
    return handle.ids["job"]
