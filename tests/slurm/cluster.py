"""A real Slurm for tests: slurm/dev-cluster, the client commands, conditions to wait for."""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from running import wait_until

DEV_CLUSTER = Path(__file__).resolve().parent.parent.parent / "slurm" / "dev-cluster"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")
STATE_TIMEOUT_S = 60.0
LIFT_S = 5.0


def dev_cluster(*argv: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one dev-cluster command; with check, a failure is an AssertionError with its output."""
    command = [str(DEV_CLUSTER), *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if check and done.returncode:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def missing() -> str:
    """Why no cluster can run here, in words that say what to do; empty if one can."""
    done = dev_cluster("check", check=False)
    return done.stderr.strip() if done.returncode else ""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up, with nodes node1..nodeN that all see this machine's files."""

    state_dir: Path
    num_nodes: int

    @property
    def nodes(self) -> list[str]:
        return [f"node{i}" for i in range(1, self.num_nodes + 1)]

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which sbatch and the other client commands speak to this cluster."""
        path = f"{self.state_dir / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.state_dir / "slurm.conf")}

    def dev(self, *argv: str | Path) -> str:
        """Run a dev-cluster command on this cluster, such as `kill node2`; returns its output."""
        return dev_cluster("--state", self.state_dir, *argv).stdout

    def client(self, *argv: str | Path) -> str:
        """Run a client command, such as squeue; returns its output."""
        done = subprocess.run(
            [*map(str, argv)],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def sbatch(self, script: str, *options: str, output: Path) -> str:
        """Submit a bash script; returns the job id. All its runs append to the output file."""
        file = output.with_suffix(".sh")
        file.write_text(f"#!/bin/bash\n{script}\n")
        common = ("--parsable", f"--output={output}", "--open-mode=append")
        return self.client("sbatch", *common, *options, file).strip()

    def squeue(self, job: str, field: str) -> str:
        """One field of a job by its long name (`squeue -O`), also after the job's end."""
        return self.client("squeue", "-h", "-t", "all", "-j", job, "-O", f"{field}:200").strip()

    def scontrol(self, job: str) -> dict[str, str]:
        """All that `scontrol show job` says: {"JobState": "FAILED", "ExitCode": "3:0", ...}."""
        line = self.client("scontrol", "-o", "show", "job", job)
        return dict(re.findall(r"(\S+?)=(.*?)(?=\s+[\w/:]+=|\s*$)", line))

    def wait_for_state(
        self, job: str, *states: str, timeout_s: float = STATE_TIMEOUT_S
    ) -> dict[str, str]:
        """Wait until the job is in one of the states; returns what `scontrol` then says of it."""
        wait_until(
            lambda: self.squeue(job, "State") in states,
            f"job {job} {' or '.join(states)}",
            timeout_s,
        )
        return self.scontrol(job)

    def wait_for_end(self, job: str, timeout_s: float = STATE_TIMEOUT_S) -> dict[str, str]:
        """Wait for any end of the job; returns what `scontrol` then says of it."""
        return self.wait_for_state(job, *ENDED, timeout_s=timeout_s)

    def nothing_to_send(self) -> bool:
        """Whether slurmctld has no message to a node in hand."""
        counts = re.findall(r"(?m)^Agent (?:queue size|count):\s+(\d+)", self.client("sdiag"))
        return counts == ["0", "0"]

    def start_now(self, job: str, *, gone: bool = False) -> None:
        """Lift the two minutes for which Slurm holds a requeued job back, and wait till it runs.

        What Slurm has still to send, above all the order to end the former run, must be out first:
        it would end the new run.

        Args:
            gone: a node of the former run is away and stays so. Slurm keeps its orders for about a
                minute then; the new run is on other nodes.
        """
        requeued = datetime.fromisoformat(self.wait_for_state(job, "PENDING")["SubmitTime"])
        # Started in the second in which it was requeued it would fail: "Job credential revoked".
        later = requeued + timedelta(seconds=1)
        wait_until(lambda: datetime.now() > later, "the next second")
        if not gone:
            wait_until(self.nothing_to_send, "slurmctld has sent all")
        lifted_at = 0.0

        def is_running() -> bool:
            nonlocal lifted_at
            state = self.squeue(job, "State")
            # More than once, since the last word of the former run may come late and hold the job
            # back anew; not all the time, since each is a change that the scheduler has to look at.
            if state == "PENDING" and time.monotonic() - lifted_at > LIFT_S:
                lifted_at = time.monotonic()
                self._lift(job)
            return state == "RUNNING"

        wait_until(is_running, f"job {job} RUNNING", STATE_TIMEOUT_S)

    def _lift(self, job: str) -> None:
        # Not within the second of the requeue: Slurm, 22.05 as well as 24.11, would end the job at
        # once as FAILED ("Job credential revoked" in slurmctld's log).
        update = ["scontrol", "update", f"JobId={job}", "StartTime=now+2"]
        # It may start just now, which makes this fail.
        subprocess.run(update, env=self.environ, capture_output=True, timeout=120, check=False)

    def node_state(self, node: str) -> str:
        """The node's state in sinfo's short words, with a `*` when it does not answer.

        All nodes are asked for: of a single one (`sinfo -n`) Slurm 22.05 says `mix` for ever after.
        """
        lines = self.client("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").splitlines()
        return dict(line.split() for line in lines)[node]

    def wait_for_node_down(self, node: str) -> None:
        """Wait until Slurm has given the node up."""
        wait_until(lambda: self.node_state(node).startswith("down"), f"{node} down")

    def wait_for_node_up(self, node: str) -> None:
        """Wait until the node takes jobs and none is ending on it."""
        wait_until(lambda: self.node_state(node) in ("idle", "mix", "alloc"), f"{node} up")
        wait_until(
            lambda: not self.client("squeue", "-h", "-t", "completing", "-w", node),
            f"{node} free of ending jobs",
        )

    def processes(self, node: str) -> str:
        """The command lines of all processes of a node."""
        return self.dev("exec", node, "ps", "-eo", "args")

    def reset(self) -> None:
        """Cancel all jobs, plug in and boot all nodes: what a test may leave undone."""
        status = self.dev("status")
        for node in self.nodes:
            if f"{node} off" in status:
                self.dev("start", node)
            self.dev("heal", node)
        self.client("scancel", "--user=root")
        wait_until(lambda: not self.client("squeue", "-h"), "no jobs")
        for node in self.nodes:
            self.wait_for_node_up(node)
