"""Sweeps on a real cluster: the rendered script and node.py; only the trainer has a stand-in."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.base import Element, Handle, State, Submission
from orchestrator.backends.site import Site
from orchestrator.backends.slurm import SlurmBackend
from orchestrator.plan import make_plan
from orchestrator.profiles import ClusterProfile
from orchestrator.render import Rendered, render
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from running import PROGRAMS, read, wait_until
from slurm.backend_runs import CountingSite
from slurm.cluster import Cluster

RUN_TIMEOUT_S = 120.0
Sweep = Mapping[str, object]


def rendered(sweep: Sweep | None, env: Mapping[str, str], **slurm: str) -> Rendered:
    job: dict[str, Any] = {
        "name": "tune", "launcher": "srun", "env": env,
        "timeouts": {"start": "60s", "shutdown": "60s"},
        "train": {
            "model": {"preset": "nano"}, "data": {"synthetic": {"samples": 64}}, "steps": 7,
        },
    } | ({"sweep": sweep} if sweep else {})  # fmt: skip
    profile = ClusterProfile(name="site", target="slurm", slurm={"python": sys.executable, **slurm})
    resolved = resolve_job(parse_document(json.dumps(job).encode(), "job.yaml"), profile)
    return render(make_plan(resolved.spec, profile, resolved.elements))


@dataclass(frozen=True)
class Sweeps:
    """Sweeps of one cluster below one folder."""

    cluster: Cluster
    folder: Path
    site: Site

    @property
    def backend(self) -> SlurmBackend:
        return SlurmBackend(self.site)

    @property
    def ran(self) -> list[str]:
        """Slurm's commands that were run."""
        assert isinstance(self.site, CountingSite)
        return self.site.ran

    def submit(
        self,
        sweep: Sweep | None,
        acts: Mapping[int, str] = {},
        *,
        fresh: bool = False,
        **slurm: str,
    ) -> Submission:
        package = self.folder / "site-packages" / "trainer"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        shutil.copy(PROGRAMS / "element.py", package / "entry.py")
        env = {"PYTHONPATH": str(package.parent), "ACTS": json.dumps(acts)}
        return self.backend.submit(
            rendered(sweep, env, **slurm), runs_root=self.folder / "runs", workdir=self.folder,
            job_text="", fresh=fresh,
        )  # fmt: skip

    def start(self, sweep: Sweep, acts: Mapping[int, str], **slurm: str) -> Handle:
        submission = self.submit(sweep, acts, fresh=False, **slurm)
        assert submission.started, submission.message
        return submission.handle

    def rows(self, handle: Handle) -> list[Element]:
        return self.backend.elements(handle)

    def states(self, handle: Handle) -> list[State]:
        return [row.status.state for row in self.rows(handle)]

    def wait_for_end(self, handle: Handle) -> None:
        wait_until(
            lambda: self.backend.status([handle])[0].state.is_final, "the end", RUN_TIMEOUT_S
        )

    def wait_ready(self, handle: Handle, *numbers: int, attempt: int = 1) -> None:
        for number in numbers:
            ready = handle.run_dir / f"{number}/attempts/{attempt}/ready"
            wait_until(ready.exists, f"{ready}: {self.states(handle)}", RUN_TIMEOUT_S)


def most_at_once(run_dir: Path) -> int:
    """How many attempts of a sweep's elements ran at the same moment, by what they have noted."""
    times = [read(path) for path in run_dir.glob("[0-9]*/attempts/*/times.json")]
    at_once: list[int] = [
        sum(t["began"] <= at["began"] <= t["ended"] for t in times) for at in times
    ]
    return max(at_once)


def job_ids(handle: Handle) -> list[str]:
    return [f"{handle.ids['job']}_{n}" for n in range(handle.num_elements)]
