"""A small training job on the real cluster, hit at chosen steps of chosen attempts."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.backends import local
from orchestrator.backends.base import Backend, Handle, State, Status
from orchestrator.backends.processes import descendants
from orchestrator.backends.site import LocalSite
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from running import PROGRAMS, losses, read, state_sha256, wait_until
from slurm.cluster import Cluster

STEPS = 12
JOB = f"""
name: faults
resources: {{nodes: 2, ranks_per_node: 2}}
parallelism: {{ddp: {{bucket_cap_mb: 0.02}}}}
train:
  model: {{factory: "acting:build", context: 32, args: {{width: 32, context: 32}}}}
  data: {{python_docs: true}}
  batch: {{micro: 2}}
  schedule: {{warmup_steps: 2}}
  evaluation: {{batches: 1}}
  logging: {{every: 2, tensorboard: false}}
  steps: {STEPS}
checkpoint: {{every: 4}}
timeouts: {{step: 5m, shutdown: 60s}}
"""
RUN_TIMEOUT_S = 180.0  # longer than a time limit of two minutes
KILL_WAIT_S = 5.0  # of dev-cluster; as long again for what Slurm does around it
Act = dict[str, object]
Outcome = tuple[dict[int, float], dict[str, str]]
"""The loss of every step, and the SHA-256 of every tensor at the end."""


def at(attempt: int, rank: int, step: int, act: str, phase: str = "step") -> Act:
    """What acting.py is to do."""
    return {"attempt": attempt, "rank": rank, "phase": phase, "step": step, "act": act}


def start(backend: Backend, folder: Path, text: str, acts: list[Act]) -> Handle:
    """Submit the job; a folder has one run."""
    folder.mkdir(exist_ok=True)
    shutil.copy(PROGRAMS / "acting.py", folder)
    (folder / "act.json").write_text(json.dumps(acts))
    slurm = {"python": sys.executable} if backend.name == "slurm" else {}
    profile = ClusterProfile(name="test", target=backend.name, slurm=slurm)  # type: ignore[arg-type]
    document = parse_document(text.encode(), "job.yaml")
    rendered = render(make_plan(resolve_job(document, profile, []).spec, profile))
    submission = backend.submit(rendered, runs_root=folder / "runs", workdir=folder, job_text=text)
    assert submission.started, submission.message
    return submission.handle


def outcome(run_dir: Path) -> Outcome:
    return losses(run_dir), state_sha256(run_dir)


def run_locally(folder: Path, acts: list[Act]) -> Path:
    """Run the job on the local backend, undisturbed; returns the run folder."""
    handle = start(local.BACKEND, folder, JOB, acts)
    wait_until(lambda: _state(local.BACKEND, handle).is_final, "the local run", RUN_TIMEOUT_S)
    assert _state(local.BACKEND, handle) is State.DONE
    return handle.run_dir


def _state(backend: Backend, handle: Handle) -> State:
    return backend.status([handle])[0].state


@dataclass
class Training:
    """One run of the job on the cluster.

    Args:
        text: the job file.
        acts: what happens in it.
    """

    cluster: Cluster
    folder: Path
    text: str = JOB
    acts: list[Act] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)

    @property
    def backend(self) -> SlurmBackend:
        return SlurmBackend(LocalSite(self.cluster.environ))

    @property
    def handle(self) -> Handle:
        return self.handles[-1]

    @property
    def job(self) -> str:
        return self.handle.ids["job"]

    @property
    def run_dir(self) -> Path:
        return self.handle.run_dir

    @classmethod
    def submitted(
        cls, cluster: Cluster, folder: Path, acts: list[Act], text: str = JOB
    ) -> Training:
        training = cls(cluster, folder / "work", text, acts)
        training.submit()
        return training

    def submit(self) -> None:
        self.handles.append(start(self.backend, self.folder, self.text, self.acts))

    def status(self) -> Status:
        return self.backend.status([self.handle])[0]

    def attempt(self, number: int) -> Path:
        return self.run_dir / "attempts" / str(number)

    def wait_for(self, attempt: int, name: str) -> None:
        """Return when the attempt's folder has this file; fail if the run ends without."""
        path = self.attempt(attempt) / name
        wait_until(lambda: path.exists() or self.status().state.is_final, name, RUN_TIMEOUT_S)
        assert path.exists(), self.logs()

    def go_on(self, restart: int, *, gone: bool = False) -> None:
        """Start the run once more, for the given time, when Slurm has requeued it and nothing is
        left of the attempt before; `gone` as in Cluster.start_now."""
        self.wait_requeued(restart)
        self.nothing_is_left()
        self.cluster.start_now(self.job, gone=gone)

    def wait_requeued(self, restart: int) -> None:
        def is_so() -> bool:
            shown = self.cluster.scontrol(self.job)
            return (shown["JobState"], shown["Restarts"]) == ("PENDING", str(restart))

        wait_until(is_so, f"restart {restart}", RUN_TIMEOUT_S)

    def ends(self, state: State) -> Status:
        """The status at the end, with nothing left of the run."""
        self.ends_at_last()
        status = self.status()
        assert status.state is state, f"{status}\n{self.logs()}"
        self.nothing_is_left()
        return status

    def ends_at_last(self) -> State:
        """The state at the end."""
        wait_until(lambda: self.status().state.is_final, "the end", RUN_TIMEOUT_S)
        return self.status().state

    def nothing_is_left(
        self, besides: tuple[str, ...] = (), timeout_s: float = 2 * KILL_WAIT_S
    ) -> None:
        """Return when no process of the run is left on any node, but for these commands."""

        def left() -> list[str]:
            return [c for c in processes_of(self.run_dir).values() if not c.startswith(besides)]

        wait_until(lambda: not left(), f"the end of {left()}", timeout_s)

    def codes(self) -> list[int | None]:
        """How each attempt has ended; None for one that was cut off."""
        ends = [self.attempt(n) / "end.json" for n in range(1, len(self.attempts()) + 1)]
        return [read(end)["code"] if end.exists() else None for end in ends]

    def attempts(self) -> list[str]:
        """The job and restart of each attempt, in the attempts' order."""
        count = len(list((self.run_dir / "attempts").glob("[0-9]*")))
        return [read(self.attempt(n) / "owner.json")["job"] for n in range(1, count + 1)]

    def assert_one_run(self, num_attempts: int) -> None:
        """All attempts are the same job's, in one run folder, each with a restart of its own."""
        restarts = [str(number) for number in range(num_attempts)]
        assert self.attempts() == [f"{self.job}.{number}" for number in restarts]
        assert [path.name for path in self.run_dir.parent.glob("[!.]*")] == ["faults"]
        assert [restart for restart, _ in self.meetings()] == restarts

    def meetings(self) -> list[tuple[str, str]]:
        """Restart and address of each meeting of the nodes, as the batch script has said."""
        pattern = r"(?m)^\[batch\] attempt \d+\.(\d+) on .*, meeting at (\S+) "
        return re.findall(pattern, self.script_log())

    def script_log(self) -> str:
        return (self.run_dir / f"logs/slurm-{self.job}.log").read_text()

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "checkpoints").glob("step-*"))

    def logs(self) -> str:
        """The ends of all logs."""
        paths = sorted(self.run_dir.glob("logs/*")) + sorted(self.run_dir.glob("attempts/*/logs/*"))
        return "\n".join(f"--- {p}\n{p.read_text(errors='replace')[-3000:]}" for p in paths)


def processes_of(run_dir: Path) -> dict[int, str]:
    """All processes on all nodes that belong to a run, which this machine sees: their commands."""
    mark = bytes(run_dir)
    found = {}
    for process in descendants(1):
        try:
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in command or b"ORCHESTRATE_RUN_DIR=" + mark + b"\0" in environ:
            found[process.pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
