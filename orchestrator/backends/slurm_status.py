"""The state of runs on Slurm, from what Slurm says of their jobs and what their folders say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import contract
from orchestrator.backends import folder
from orchestrator.backends.base import Handle, State, Status
from orchestrator.backends.site import Site
from orchestrator.backends.slurm_commands import Job, joined
from orchestrator.backends.slurm_reasons import explain, is_held
from orchestrator.backends.slurm_states import state_of
from orchestrator.backends.sweeps import CANCEL_FILE
from orchestrator.contract import RunPaths
from orchestrator.errors import printable

FACT_BYTES = 16384
# RUN... -> for each a line with the numbers of its attempts, and DONE if it is done.
NAMES = """
for run do
  for path in "$run"/attempts/[0-9]* "$run"/DONE; do
    if [ -e "$path" ]; then printf '%s ' "${path##*/}"; fi
  done
  echo
done
"""


@dataclass(frozen=True)
class Facts:
    """What the folder of a run says.

    Args:
        attempt: number of the newest attempt; 0 if there is none.
        is_done: whether it is marked as finished.
        cancelled: id of the job that was last cancelled; "" if none was.
        owner: who claimed the newest attempt: job id, ".", number of requeues.
        end: how the newest attempt ended (end.json); empty while it runs.
        step: optimizer steps done.
        steps: optimizer steps in all.
    """

    attempt: int = 0
    is_done: bool = False
    cancelled: str = ""
    owner: str = ""
    end: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    steps: int | None = None


def read_facts(site: Site, run_dirs: Sequence[Path]) -> list[Facts]:
    """What the run folders say, one for each, by two commands in all."""
    if not run_dirs:
        return []
    done = site.run(["sh", "-c", NAMES, "sh", *map(str, run_dirs)])
    names = [line.split() for line in done.stdout.splitlines()]
    names += [[]] * (len(run_dirs) - len(names))
    attempts = [max((int(n) for n in found if n.isdecimal()), default=0) for found in names]
    paths = [p for d, n in zip(run_dirs, attempts, strict=True) for p in _files(d, n)]
    files = iter(site.ends(paths, FACT_BYTES))
    rows = zip(attempts, names, strict=True)
    return [_facts(attempt, contract.DONE_FILE in found, files) for attempt, found in rows]


def _files(run_dir: Path, attempt: int) -> list[Path]:
    paths = RunPaths(run_dir)
    return [
        run_dir / CANCEL_FILE,
        paths.attempt(attempt) / contract.OWNER_FILE,
        paths.end(attempt),
        paths.metrics,
        paths.rendered / "trainer.json",
    ]


def _facts(attempt: int, is_done: bool, files: Iterator[bytes]) -> Facts:
    """The next of the files are those of `_files`."""
    cancelled = next(files).decode(errors="replace").strip()
    owner = str(folder.parsed(next(files)).get("job", ""))
    end = folder.parsed(next(files))
    step, steps = folder.step_of(next(files)), folder.steps_of(next(files))
    return Facts(attempt, is_done, cancelled, owner, end, step, steps)


def status_of(handle: Handle, job: Job | None, facts: Facts) -> Status:
    """The status of a run.

    Args:
        job: what Slurm says of its job; None if it knows nothing of it.
    """
    id_ = handle.ids.get("job", "")
    state, reason = judge(id_, job, facts) if job else _forgotten(id_, facts)
    attempt = facts.attempt or None
    return Status(handle.run, state, attempt, one_line(reason), facts.step, facts.steps)


def unanswered(handle: Handle, facts: Facts, why: str) -> Status:
    """The status of a run on a cluster that gives no answer."""
    state = State.DONE if facts.is_done else State.UNKNOWN
    return Status(handle.run, state, facts.attempt or None, one_line(why), facts.step, facts.steps)


def judge(id_: str, job: Job, facts: Facts) -> tuple[State, str]:
    """State and reason of a run whose job Slurm knows."""
    state, meaning = state_of(job.state)
    if state.is_final:
        return _final(id_, job, facts)
    waits = joined(meaning, explain(job.reason))
    last = _end_reason(id_, facts)
    if state is State.PENDING and is_held(job.reason):
        return State.QUEUED, waits
    if state is State.PENDING and job.restarts:
        return State.RESTARTING, joined(last, waits)
    if job.state == "RUNNING":
        return State.RUNNING, _running(id_, job, facts)
    return state, waits


def _running(id_: str, job: Job, facts: Facts) -> str:
    if facts.owner != f"{id_}.{job.restarts}":
        return "its nodes are starting"
    if facts.end:
        return f"attempt {facts.attempt} has ended: {_end_reason(id_, facts)}"
    return ""


def _final(id_: str, job: Job, facts: Facts) -> tuple[State, str]:
    state, meaning = state_of(job.state)
    if facts.is_done or state is State.DONE:
        # What fails after rank 0 has marked the run as finished does not undo that.
        return State.DONE, contract.OUTCOME_DONE
    last = _end_reason(id_, facts)
    if state is State.CANCELLED or facts.cancelled == id_:
        return State.CANCELLED, joined(last, "submit it again to continue")
    name = "" if job.state == "FAILED" else job.state
    why = joined(name, meaning, last or _script(id_, job))
    return state, why


def _script(id_: str, job: Job) -> str:
    """Why a job failed that left no attempt behind that says so."""
    code = f"exit code {job.code}" if job.code else ""
    return joined(explain(job.reason), code, f"see logs/slurm-{id_}.log")


def _forgotten(id_: str, facts: Facts) -> tuple[State, str]:
    """State and reason of a run of whose job Slurm knows nothing (any more)."""
    if facts.is_done:
        return State.DONE, contract.OUTCOME_DONE
    last = _end_reason(id_, facts)
    if id_ and facts.cancelled == id_:
        return State.CANCELLED, joined(last, "submit it again to continue")
    if facts.end.get("code") == contract.EXIT_CONFIGURATION:
        return State.FAILED, last
    job = f"job {id_}" if id_ else "a job of this run"
    gone = f"Slurm knows nothing of {job} any more; submit it again to continue"
    return State.LOST, joined(last, gone)


def _end_reason(id_: str, facts: Facts) -> str:
    """Why the newest attempt ended, if it was one of this job's."""
    if facts.owner.partition(".")[0] != id_:
        return ""
    return str(facts.end.get("reason", ""))


def one_line(text: str) -> str:
    """A text as a table shows it."""
    return printable(" ".join(text.split()))
