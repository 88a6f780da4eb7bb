"""Runs jobs on a Slurm cluster, by the commands of its users: sbatch, squeue, sacct, scancel.

slurmctld is asked first, since it knows at once what happens to a job; the accounting database,
which is seconds behind, only for jobs that slurmctld has forgotten.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import folder, slurm_commands
from orchestrator.backends.base import After, Handle, RenderedFiles, Status, Submission
from orchestrator.backends.runstore import RunStore
from orchestrator.backends.site import LocalSite, Site, site_of
from orchestrator.backends.slurm_commands import Job, NoAnswer, joined
from orchestrator.backends.slurm_status import (
    CANCEL_FILE,
    Facts,
    read_facts,
    status_of,
    unanswered,
)
from orchestrator.backends.slurm_submit import SCRIPT, Order
from orchestrator.errors import BackendError, UserError

# What goes by between the end of the training and that of the job: KillWait (30 s by default), an
# epilog, the accounting.
LEAVE_GRACE_S = 120.0
RESEND_S = 10.0
HOPELESS = ("denied", "Unable to contact")  # what scancel says that will not pass by itself
FIRST_POLL_S = 0.2


class SlurmBackend:
    """The backend `slurm`.

    Args:
        site: the machine with Slurm's commands and the run folders.
    """

    name = "slurm"
    poll_s = 5.0

    def __init__(self, site: Site) -> None:
        self.site = site

    def at(self, ssh: str) -> SlurmBackend:
        """The same by ssh from a login node."""
        return SlurmBackend(site_of(ssh))

    def submit(
        self,
        rendered: RenderedFiles,
        *,
        runs_root: Path,
        workdir: Path,
        job_text: str,
        fresh: bool = False,
        after: Sequence[After] = (),
    ) -> Submission:
        """Put the run into Slurm's queue, unless it is there or finished."""
        run_dir = folder.place(self.site, runs_root, rendered.name)
        work = self.site.absolute(str(workdir))
        order = Order(self.site, self.name, rendered, run_dir, work)
        return order.submit(job_text, fresh=fresh, after=after)

    def online_check(self, rendered: RenderedFiles) -> str:
        """What Slurm says to the job without taking it: when and where it would start.

        Raises BackendError if it would not take it.
        """
        script = rendered.files[SCRIPT].encode()
        done = slurm_commands.call(self.site, "sbatch", "--test-only", stdin=script)
        if done.code != 0:
            raise slurm_commands.failure(self.site, done, f"{rendered.name} would be refused")
        return slurm_commands.spoken(done.stderr or done.stdout)

    def handle(self, run_dir: Path) -> Handle:
        """The handle of a run folder. Raises UserError if it has no receipt."""
        place = self.site.absolute(str(run_dir))
        handle = folder.owned(self.site, place, self.name)
        if handle is None:
            raise UserError(f"{self.site.label}: {place} is no run: it has no receipt.json")
        return handle

    def status(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle, by two commands of Slurm's at most for each cluster."""
        facts = read_facts(self.site, [handle.run_dir for handle in handles])
        by_cluster: dict[str, list[int]] = defaultdict(list)
        for number, handle in enumerate(handles):
            by_cluster[handle.ids.get("cluster", "")].append(number)
        found: dict[int, Status] = {}
        for cluster, numbers in by_cluster.items():
            pairs = [(handles[number], facts[number]) for number in numbers]
            found |= zip(numbers, _statuses(self.site, cluster, pairs), strict=True)
        return [found[number] for number in range(len(handles))]

    def cancel(self, handle: Handle, *, now: bool = False) -> str:
        """Stop a run and wait until it has stopped: with a checkpoint for `timeouts.shutdown` and a
        little longer, or at once.

        Raises BackendError if it would not stop.
        """
        status = self.status([handle])[0]
        if status.state.is_final:
            return f"{handle.run} does not run: {status.state.value} ({status.reason})"
        job = handle.ids["job"]
        # With this file the batch script knows that its end is a cancel, and not to be made good.
        self.site.put({CANCEL_FILE: f"{job}\n".encode()}, handle.run_dir)
        if now:
            return _stop(self, handle, [()], LEAVE_GRACE_S)
        # TERM to the batch script alone: its trap drains. The profile may change the other signal.
        limit_s = _shutdown_timeout_s(self.run_store(handle)) + LEAVE_GRACE_S
        return _stop(self, handle, [("--state=PENDING",), ("--signal=TERM", "--batch")], limit_s)

    def list(self, runs_root: Path) -> list[Handle]:
        """All runs on Slurm under a folder, by name."""
        return folder.find(self.site, runs_root, self.name)

    def run_store(self, handle: Handle) -> RunStore:
        """Access to the run folder."""
        return self.site.store(handle.run_dir)


def _statuses(site: Site, cluster: str, pairs: Sequence[tuple[Handle, Facts]]) -> list[Status]:
    """The statuses of runs on one cluster; UNKNOWN where that gives no answer."""
    try:
        jobs = _jobs(site, cluster, pairs)
    except NoAnswer as error:
        return [unanswered(handle, facts, str(error)) for handle, facts in pairs]
    return [status_of(h, jobs.get(h.ids.get("job", ""), ()), facts) for h, facts in pairs]


def _jobs(site: Site, cluster: str, pairs: Sequence[tuple[Handle, Facts]]) -> dict[str, list[Job]]:
    """What Slurm says of each job, by the id in its handle."""
    runs = {h.ids["job"]: h.run for h, _ in pairs if h.ids.get("job")}
    found: dict[str, list[Job]] = defaultdict(list)
    if runs:
        _sort(slurm_commands.queue(site, list(runs), cluster), runs, found)
    done = {h.ids.get("job") for h, facts in pairs if facts.is_done}
    if missing := [id_ for id_ in runs if id_ not in found and id_ not in done]:
        _sort(slurm_commands.accounting(site, missing, cluster), runs, found)
    return found


def _sort(jobs: Sequence[Job], runs: dict[str, str], found: dict[str, list[Job]]) -> None:
    """Put each job to the id that was asked for: its own, or its array's.

    A job of another name is none of ours: ids begin anew where a cluster is set up anew.
    """
    for job in jobs:
        for id_ in (job.id, job.id.partition("_")[0]):
            if runs.get(id_) == job.name:
                found[id_].append(job)
                break


def _shutdown_timeout_s(store: RunStore) -> float:
    """How long the run was given for its last checkpoint."""
    launch = folder.parsed(store.read(f"{contract.RENDERED_DIR}/launch.json"))
    return float(launch.get("shutdown_timeout_s", 0))


def _stop(
    backend: SlurmBackend, handle: Handle, stops: Sequence[Sequence[str]], limit_s: float
) -> str:
    """Send `scancel` until the run has ended; again and again, since a job that only just starts
    does not hear a signal."""
    deadline, resend, pause_s, said = time.monotonic() + limit_s, 0.0, FIRST_POLL_S, ""
    while time.monotonic() < deadline:
        if time.monotonic() >= resend:
            said = _scancel(backend.site, handle, stops)
            resend = time.monotonic() + RESEND_S
        status = backend.status([handle])[0]
        if status.state.is_final:
            return f"{handle.run}: {status.state.value} ({status.reason})"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, backend.poll_s)
    raise BackendError(joined(f"{handle.run} did not stop within {limit_s:g} s", said))


def _scancel(site: Site, handle: Handle, stops: Sequence[Sequence[str]]) -> str:
    """Send it; what Slurm said. That the job waits, or ends just now, is no error."""
    said = ""
    cluster = handle.ids.get("cluster")
    for options in stops:
        argv = ["scancel", *([f"--clusters={cluster}"] if cluster else []), *options]
        done = slurm_commands.call(site, *argv, handle.ids["job"])
        if any(words in done.stderr for words in HOPELESS):
            raise slurm_commands.failure(site, done, f"cannot cancel {handle.run}")
        said = slurm_commands.spoken(done.stderr) or said
    return said


BACKEND = SlurmBackend(LocalSite())
