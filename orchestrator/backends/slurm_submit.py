"""Puts a run into Slurm's queue, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from orchestrator import contract
from orchestrator.backends import folder, slurm_commands
from orchestrator.backends.base import After, Handle, RenderedFiles, Submission
from orchestrator.backends.site import LocalSite, Site
from orchestrator.backends.slurm_commands import Job, joined
from orchestrator.backends.slurm_states import state_of
from orchestrator.backends.slurm_status import CANCEL_FILE
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
            if (live := self._live()) is not None:
                return self._is_live(live, old, fresh)
            dependency = self._dependency(after)
            kept = folder.put_aside(self.site, self.run_dir) if fresh else None
            if self._is_done(self.run_dir):
                text = f"{self.name} is done: nothing to start; --fresh starts it anew"
                return Submission(old or self._handle({}), False, text)
            folder.write(self.site, self.run_dir, self.rendered, job_text, _launch_files())
            ids, said = self._sbatch(dependency)
            handle = self._handle(ids)
            folder.write_receipt(self.site, handle, self.workdir, self.rendered)
        text = f"{self.name} {'continues' if old and not kept else 'is submitted'} as job "
        text += f"{ids['job']} in {self.run_dir}"
        aside = f"the old run folder is {kept} now" if kept else ""
        return Submission(handle, True, joined(text, aside, said))

    def _handle(self, ids: dict[str, str]) -> Handle:
        return Handle(self.backend, self.name, self.run_dir, ids)

    def _is_done(self, run_dir: Path) -> bool:
        return contract.DONE_FILE in self.site.store(run_dir).list()

    def _check_paths(self) -> None:
        """Raises UserError for a path that Slurm cannot carry, or a folder that is not there."""
        if "\\" in str(self.run_dir):
            raise UserError(
                f"{self.run_dir}: Slurm takes a backslash in the name of its log for a sign of its "
                "own: choose a runs root without one"
            )
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

    def _live(self) -> Job | None:
        """The job of the run that waits or runs, also one whose receipt was never written."""
        for job in slurm_commands.queue_of_name(self.site, self.name):
            is_here = job.work_dir == str(self.run_dir).strip()
            if is_here and not state_of(job.state)[0].is_final:
                return job
        return None

    def _is_live(self, job: Job, old: Handle | None, fresh: bool) -> Submission:
        id_ = job.id.partition("_")[0]
        where = f"in Slurm's queue as job {id_} ({job.state})"
        if fresh:
            raise BackendError(f"{self.name} is {where}: cancel it before you start it --fresh")
        if old is None or old.ids.get("job") != id_:
            old = self._handle({"job": id_, "cluster": ""})
            folder.write_receipt(self.site, old, self.workdir, self.rendered)
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
        if after.kind != "afternotok" and self._is_done(other):
            return ""
        return f"{after.kind}:{handle.ids['job']}"

    def _sbatch(self, dependency: Sequence[str]) -> tuple[dict[str, str], str]:
        """Submit the script; the ids of the job, and what Slurm had to say besides."""
        logs = f"{self.run_dir}/{contract.LOGS_DIR}"
        folder.checked(self.site, "rm", "-f", "--", str(self.run_dir / CANCEL_FILE))
        folder.checked(self.site, "mkdir", "-p", "--", logs)
        log = logs.replace("%", "%%") + "/slurm-%j.log"
        done = slurm_commands.call(
            self.site,
            *("sbatch", "--parsable", f"--job-name={self.name}", f"--chdir={self.run_dir}"),
            *(f"--output={log}", f"--error={log}", "--open-mode=append", *dependency),
            *(str(RunPaths(self.run_dir).rendered / SCRIPT), str(self.run_dir), str(self.workdir)),
            timeout_s=slurm_commands.SBATCH_TIMEOUT_S,
        )
        ids = slurm_commands.job_id(done.stdout) if done.code == 0 else None
        if ids is None:
            raise slurm_commands.failure(self.site, done, f"Slurm refused {self.name}")
        return {"job": ids[0], "cluster": ids[1]}, slurm_commands.spoken(done.stderr)


def _launch_files() -> dict[str, bytes]:
    """What starts a node, so that a container or a foreign image needs nothing installed."""
    return {f"launch/{name}": (TRAINER / name).read_bytes() for name in LAUNCH_FILES}
