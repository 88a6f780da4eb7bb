"""Puts a run into Slurm's queue, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import folder, slurm_commands, submitit_submit, sweeps
from orchestrator.backends.base import After, Handle, RenderedFiles, Submission
from orchestrator.backends.site import Completed, LocalSite, Site
from orchestrator.backends.slurm_commands import Job, joined
from orchestrator.backends.slurm_states import state_of
from orchestrator.backends.sweeps import CANCEL_FILE, Sweep
from orchestrator.contract import RunPaths
from orchestrator.errors import BackendError, UserError

# Both packages are installed side by side.
TRAINER = Path(__file__).resolve().parents[2] / "trainer"
SCRIPT = "job.sh"
LAUNCH_FILES = ("node.py", "batch.py")  # of the package trainer; the standard library alone
AFTER = ("after", "afterany", "afternotok", "afterok")  # sbatch(1), --dependency


@dataclass(frozen=True)
class Order:
    """A run that is to be submitted.

    Args:
        site: the machine with Slurm's commands.
        backend: name of the backend.
        rendered: its files.
        run_dir: its folder, absolute.
        workdir: folder that relative paths of the job file are relative to, absolute.
    """

    site: Site
    backend: str
    rendered: RenderedFiles
    run_dir: Path
    workdir: Path

    @property
    def name(self) -> str:
        return self.rendered.name

    def submit(self, job_text: str, *, fresh: bool, after: Sequence[After]) -> Submission:
        """Submit it, unless it is in the queue or finished."""
        self._check_paths()
        with self._lock():
            old = folder.owned(self.site, self.run_dir, self.backend)
            if live := self._live():
                return self._is_live(live, old, fresh)
            dependency = self._dependency(after)
            kept = folder.put_aside(self.site, self.run_dir) if fresh else None
            sweeps.check_continues(self.site, None if kept else old, self.sweep)
            left = self._left()
            if self._is_done(self.run_dir) or left == []:
                text = f"{self.name} is done: nothing to start; --fresh starts it anew"
                return Submission(old or self._handle({}), False, text)
            files = _launch_files(self.is_submitits)
            folder.write(self.site, self.run_dir, self.rendered, job_text, files)
            if left:
                sweeps.prepare(self.site, self.run_dir, self.rendered, left)
            ids, said = self._sbatch(dependency, left or ())
            handle = self._handle(ids)
            self._write_receipts(handle, left or ())
        text = f"{self.name} {'continues' if old and not kept else 'is submitted'} as job "
        text += f"{ids['job']} in {self.run_dir}"
        text += f", {len(left)} of {handle.num_elements} elements" if left else ""
        aside = f"the old run folder is {kept} now" if kept else ""
        return Submission(handle, True, joined(text, aside, said))

    @property
    def is_submitits(self) -> bool:
        """Whether it goes by submitit and not by a batch script of our own."""
        return submitit_submit.is_submitits(self.rendered.files)

    @cached_property
    def sweep(self) -> Sweep | None:
        """The sweep that it is; None for a single run."""
        return sweeps.sweep_of(self.rendered)

    def _handle(self, ids: dict[str, str]) -> Handle:
        num_elements = len(self.sweep.values) if self.sweep else 0
        return Handle(self.backend, self.name, self.run_dir, ids, num_elements)

    def _left(self) -> list[int] | None:
        """The elements of the sweep that are not finished; None for a single run."""
        return sweeps.numbers_left(self.site, self.run_dir, self.sweep) if self.sweep else None

    def _write_receipts(self, handle: Handle, numbers: Sequence[int]) -> None:
        """Write the run's receipt, and those of the elements that its job has."""
        job = handle.ids["job"]
        own = [sweeps.element(handle, n, {**handle.ids, "job": f"{job}_{n}"}) for n in numbers]
        sweeps.write_receipts(self.site, handle, own, self.workdir, self.rendered)

    def _is_done(self, run_dir: Path) -> bool:
        return contract.DONE_FILE in self.site.store(run_dir).list()

    def _check_paths(self) -> None:
        """Raises UserError for a path that Slurm cannot carry, or a folder that is not there."""
        if "\\" in str(self.run_dir):
            raise UserError(
                f"{self.run_dir}: Slurm takes a backslash in the name of its log for a sign of its "
                "own: choose a runs root without one"
            )
        if self.is_submitits:
            submitit_submit.check(self.site, self.run_dir)
        if self.site.run(["test", "-d", str(self.workdir)]).code != 0:
            raise UserError(
                f"{self.site.label}: no folder {self.workdir}, to which relative paths of the job "
                "file are relative: make it there"
            )

    def _lock(self) -> AbstractContextManager[object]:
        """Keeps other submits of the run off. From elsewhere it cannot be had: there Slurm's
        singleton and the claim of an attempt see to it that only one of two jobs trains."""
        if not isinstance(self.site, LocalSite):
            return nullcontext()
        return folder.locked(self.run_dir, lambda: False, slurm_commands.SBATCH_TIMEOUT_S)

    def _live(self) -> list[Job]:
        """The job of the run, if it waits or runs, also one whose receipt was never written; of a
        sweep all elements that its array has."""
        jobs = slurm_commands.queue_of_name(self.site, self.name)
        here = [job for job in jobs if job.work_dir == str(self.run_dir).strip()]
        live = {_array(job) for job in here if not state_of(job.state)[0].is_final}
        return [job for job in here if _array(job) in live]

    def _is_live(self, jobs: Sequence[Job], old: Handle | None, fresh: bool) -> Submission:
        job = next(job for job in jobs if not state_of(job.state)[0].is_final)
        id_ = _array(job)
        where = f"in Slurm's queue as job {id_} ({job.state})"
        if fresh:
            raise BackendError(f"{self.name} is {where}: cancel it before you start it --fresh")
        if old is None or old.ids.get("job") != id_:
            old = self._handle({"job": id_, "cluster": ""})
            elements = [job.id.partition("_")[2] for job in jobs if _array(job) == id_]
            self._write_receipts(old, sorted(int(number) for number in elements if number))
        return Submission(old, False, f"{self.name} is {where} already: nothing started")

    def _dependency(self, after: Sequence[After]) -> list[str]:
        """sbatch's options for what the run waits for; always for other jobs of its name."""
        parts = [part for one in after if (part := self._after(one))]
        # What can never be met would be waited for without end.
        kill = ["--kill-on-invalid-dep=yes"] if parts else []
        return [f"--dependency={','.join([*parts, 'singleton'])}", *kill]

    def _after(self, after: After) -> str:
        if after.kind not in AFTER:
            raise UserError(f"after: {after.kind!r} is no kind; allowed: {', '.join(AFTER)}")
        if after.target.replace("_", "", 1).isdecimal():
            return f"{after.kind}:{after.target}"
        runs_root = self.run_dir.parent
        other = folder.place(self.site, runs_root, after.target)
        handle = folder.owned(self.site, other, self.backend)
        if handle is None:
            raise UserError(f"after: no run {after.target!r} under {runs_root}: submit it first")
        if after.kind != "afternotok" and self._is_over(other):
            return ""
        return f"{after.kind}:{handle.ids['job']}"

    def _is_over(self, run_dir: Path) -> bool:
        """Whether a run, or each element of a sweep, is finished."""
        sweep = sweeps.read_sweep(self.site, run_dir)
        if sweep is None:
            return self._is_done(run_dir)
        return not sweeps.numbers_left(self.site, run_dir, sweep)

    def _sbatch(
        self, dependency: Sequence[str], elements: Sequence[int]
    ) -> tuple[dict[str, str], str]:
        """Submit the script; the ids of the job, and what Slurm had to say besides.

        Args:
            elements: which of the sweep's; none for a single run.
        """
        logs = f"{self.run_dir}/{contract.LOGS_DIR}"
        folder.checked(self.site, "rm", "-f", "--", str(self.run_dir / CANCEL_FILE))
        folder.checked(self.site, "mkdir", "-p", "--", logs)
        if self.is_submitits:
            done = submitit_submit.send(self.site, self.run_dir, self.workdir, dependency)
        else:
            done = self._send(logs, [*dependency, *self._array_options(elements)])
        ids = slurm_commands.job_id(done.stdout) if done.code == 0 else None
        if ids is None:
            raise slurm_commands.failure(self.site, done, f"Slurm refused {self.name}")
        return {"job": ids[0], "cluster": ids[1]}, slurm_commands.spoken(done.stderr)

    def _array_options(self, elements: Sequence[int]) -> list[str]:
        """Which elements, and how many at once. Not in the script: that depends on what is done."""
        if self.sweep is None:
            return []
        limit = f"%{self.sweep.at_once}" if self.sweep.at_once else ""
        return [f"--array={slurm_commands.ranges(elements)}{limit}"]

    def _send(self, logs: str, options: Sequence[str]) -> Completed:
        log = logs.replace("%", "%%") + "/slurm-%j.log"
        if self.sweep is not None:  # %A: the array's id, %a: the element's number
            log = str(self.run_dir).replace("%", "%%") + f"/%a/{contract.LOGS_DIR}/slurm-%A_%a.log"
        return slurm_commands.call(
            self.site,
            *("sbatch", "--parsable", f"--job-name={self.name}", f"--chdir={self.run_dir}"),
            *(f"--output={log}", f"--error={log}", "--open-mode=append", *options),
            *(str(RunPaths(self.run_dir).rendered / SCRIPT), str(self.run_dir), str(self.workdir)),
            timeout_s=slurm_commands.SBATCH_TIMEOUT_S,
        )


def _array(job: Job) -> str:
    """The id of a job, or that of the array of which it is an element."""
    return job.id.partition("_")[0]


def _launch_files(is_submitits: bool) -> dict[str, bytes]:
    """What starts a node, so that a container or a foreign image needs nothing installed."""
    names = (*LAUNCH_FILES, submitit_submit.PROGRAM) if is_submitits else LAUNCH_FILES
    return {f"launch/{name}": (TRAINER / name).read_bytes() for name in names}
