"""Runs of a program that notes what it finds (programs/probe.py) in the trainer's place."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.base import Handle, State, Status, Submission
from orchestrator.backends.site import LocalSite
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import Rendered, render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from running import PROGRAMS, read, wait_until
from slurm.cluster import Cluster

RUN_TIMEOUT_S = 120.0
PAIR: dict[str, Any] = {
    "resources": {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 2},
    "timeouts": {"start": "60s", "shutdown": "60s"},
}
"""A job of two ranks on each of two nodes."""


def rendered(job: Mapping[str, object], **slurm: object) -> Rendered:
    """The files of a job on a site with these facts."""
    train = {
        "model": {"preset": "nano"}, "data": {"synthetic": {"samples": 64}}, "steps": 1,
    }  # fmt: skip
    text = json.dumps({"name": "probe", "train": train, **job})
    profile = ClusterProfile(name="site", target="slurm", slurm={"python": sys.executable, **slurm})
    spec = resolve_job(parse_document(text.encode(), "job.yaml"), profile).spec
    return render(make_plan(spec, profile))


@dataclass(frozen=True)
class Probe:
    """Runs below a folder."""

    cluster: Cluster
    folder: Path

    @property
    def backend(self) -> SlurmBackend:
        return SlurmBackend(LocalSite(self.cluster.environ))

    def submit(
        self, what: str, job: Mapping[str, Any], *, environ: Mapping[str, str] = {}, **slurm: Any
    ) -> Handle:
        """Submit the job, whose program is to do `what`, from a shell with these variables too."""
        package = self.folder / "site-packages" / "trainer"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        shutil.copy(PROGRAMS / "probe.py", package / "entry.py")
        env = {"PYTHONPATH": str(package.parent), "PROBE": what, **job.get("env", {})}
        backend = SlurmBackend(LocalSite({**self.cluster.environ, **environ}))
        submission: Submission = backend.submit(
            rendered({**job, "env": env}, **slurm),
            runs_root=self.folder / "runs", workdir=self.folder, job_text="",
        )  # fmt: skip
        assert submission.started, submission.message
        return submission.handle

    def status(self, handle: Handle) -> Status:
        return self.backend.status([handle])[0]

    def wait_ready(self, handle: Handle, attempt: int, num_ranks: int) -> None:
        """Return when every rank of the attempt waits; fail if the run ends before."""
        folder = handle.run_dir / "attempts" / str(attempt)

        def is_so() -> bool:
            assert not self.status(handle).state.is_final, self.logs(handle)
            return all((folder / f"ready-{rank}").exists() for rank in range(num_ranks))

        wait_until(is_so, f"attempt {attempt} is ready", RUN_TIMEOUT_S)

    def start_again(self, handle: Handle) -> None:
        """Let the job start anew, once it is requeued and Slurm has done with its last run: what is
        set before is overwritten then. Not within a second either: Slurm may then take the end of
        the last run for that of the new one."""
        site, job = self.cluster, handle.ids["job"]
        site.wait_for_state(job, "PENDING")
        ending = ("squeue", "-h", "-t", "completing", "-j", job)
        wait_until(lambda: not site.client(*ending), f"the end of job {job}'s last run")
        wait_until(site.nothing_to_send, "slurmctld has sent all")
        site.client("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def ends(self, handle: Handle, state: State) -> None:
        wait_until(lambda: self.status(handle).state.is_final, "the end", RUN_TIMEOUT_S)
        assert self.status(handle).state is state, self.logs(handle)

    def logs(self, handle: Handle) -> str:
        paths = [*handle.run_dir.glob("logs/*"), *handle.run_dir.glob("attempts/*/logs/*")]
        texts = [path.read_text(errors="replace")[-3000:] for path in sorted(paths)]
        return "\n".join([str(self.status(handle)), *texts])


def seen(handle: Handle, attempt: int = 1) -> list[dict[str, Any]]:
    """What the ranks of an attempt have noted, by rank."""
    paths = (handle.run_dir / "attempts" / str(attempt)).glob("seen-*.json")
    return [read(path) for path in sorted(paths, key=lambda path: int(path.stem[5:]))]
