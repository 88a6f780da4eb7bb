"""Runs jobs on a Slurm cluster, by the commands of its users: sbatch, squeue, sacct, scancel.

slurmctld is asked first, since it knows at once what happens to a job; the accounting database,
which is seconds behind, only for jobs that slurmctld has forgotten.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import folder, slurm_commands, submitit_submit, sweeps
from orchestrator.backends.base import (
    After,
    Element,
    Handle,
    RenderedFiles,
    Status,
    Submission,
)
from orchestrator.backends.runstore import RunStore
from orchestrator.backends.site import LocalSite, NoAnswer, Site, site_of
from orchestrator.backends.slurm_commands import Job, joined
from orchestrator.backends.slurm_status import (
    Facts,
    read_facts,
    status_of,
    unanswered,
)
from orchestrator.backends.slurm_submit import SCRIPT, Order
from orchestrator.backends.sweeps import CANCEL_FILE
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
        options, script = [], rendered.files.get(SCRIPT, "#!/bin/sh\n")
        if submitit_submit.is_submitits(rendered.files):
            options = submitit_submit.sbatch_options(rendered)
        argv = ["sbatch", "--test-only", *options]
        done = slurm_commands.call(self.site, *argv, stdin=script.encode())
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
        return sweeps.statuses(self.site, handles, self._ask)

    def elements(self, handle: Handle) -> list[Element]:
        """The elements of a sweep, by two commands of Slurm's at most."""
        return sweeps.elements(self.site, handle, self._ask)

    def _ask(self, handles: Sequence[Handle]) -> list[Status]:
        """One status for each handle, none of which is a sweep's."""
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
        """Stop a run and wait until it has stopped: with a checkpoint, a little longer than node.py
        does, or at once.

        Raises BackendError if it would not stop.
        """
        status = self.status([handle])[0]
        if status.state.is_final:
            return f"{handle.run} does not run: {status.state.value} ({status.reason})"
        self._note_cancel(handle)
        if now:
            return _stop(self, handle, [()], LEAVE_GRACE_S)
        # TERM to the batch script alone: its trap drains. The profile may change the other signal.
        limit_s = _drain_limit_s(self.run_store(handle)) + LEAVE_GRACE_S
        drain = submitit_submit.stop_options(self.run_store(handle).list(contract.RENDERED_DIR))
        return _stop(self, handle, [("--state=PENDING",), drain], limit_s)

    def _note_cancel(self, handle: Handle) -> None:
        """With this file a batch script knows that its end is a cancel, and not to be made good."""
        if not handle.num_elements:
            text = f"{handle.ids['job']}\n"
            return self.site.put({CANCEL_FILE: text.encode()}, handle.run_dir)
        elements = sweeps.element_handles(self.site, handle)
        pairs = zip(elements, self._ask(elements), strict=True)
        # One without a job, from a submit that was cut off, has nothing to be cancelled.
        going = [e for e, status in pairs if "job" in e.ids and not status.state.is_final]
        files = {f"{e.run_dir.name}/{CANCEL_FILE}": f"{e.ids['job']}\n".encode() for e in going}
        return folder.unpack(self.site, handle.run_dir, files)

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
    return [status_of(h, jobs.get(h.ids.get("job", "")), facts) for h, facts in pairs]


def _jobs(site: Site, cluster: str, pairs: Sequence[tuple[Handle, Facts]]) -> dict[str, Job]:
    """What Slurm says of each job, by the id in its handle."""
    # An element is a job of its sweep's name, and is asked for by the id of the whole array.
    names = {h.ids["job"]: h.run.partition("/")[0] for h, _ in pairs if h.ids.get("job")}
    found: dict[str, Job] = {}
    if names:
        found |= _ours(slurm_commands.queue(site, _whole(names), cluster), names)
    done = {h.ids.get("job") for h, facts in pairs if facts.is_done}
    if missing := [id_ for id_ in names if id_ not in found and id_ not in done]:
        jobs = slurm_commands.accounting(site, _whole(missing), cluster)
        found |= {id_: job for id_, job in _ours(jobs, names).items() if id_ in missing}
    return found


def _whole(ids: Iterable[str]) -> list[str]:
    """The ids of jobs, and for elements those of their arrays, each once."""
    return list(dict.fromkeys(id_.partition("_")[0] for id_ in ids))


def _ours(jobs: Sequence[Job], names: Mapping[str, str]) -> dict[str, Job]:
    """Those jobs that were asked for, by id.

    A job of another name is none of ours: ids begin anew where a cluster is set up anew.
    """
    return {job.id: job for job in jobs if names.get(job.id) == job.name}


def _drain_limit_s(store: RunStore) -> float:
    """How long the run was given for its last checkpoint."""
    launch = folder.parsed(store.read(f"{contract.RENDERED_DIR}/launch.json"))
    timeout_s = float(launch.get("shutdown_timeout_s", 0))
    return contract.drain_limit_s(timeout_s, store.tail(contract.GRACE_FILE, 0))


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
