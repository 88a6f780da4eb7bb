"""Slurm's commands: what they are given and what is read from their answers.

Answers are text with named fields and separators of our own: Slurm's JSON has another shape in each
release, and is missing in some builds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.backends.site import (
    COMMAND_MISSING,
    Completed,
    NoAnswer,
    Site,
    no_such_command,
)
from orchestrator.errors import printable

# sbatch can wait for slurmctld for longer than the others (MessageTimeout, 10 s, and repeats).
SBATCH_TIMEOUT_S = 120.0
# What belongs to a job or step in which we may run ourselves, or would change what a command does
# or prints: the manual pages' "ENVIRONMENT VARIABLES", and torchrun's. SLURM_CONF and what proves
# who we are stay.
SCRUB = r"""
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in
    SLURM_CONF | SLURM_CONF_SERVER | SLURM_JWT) ;;
    SLURM_* | SLURMD_* | SBATCH_* | SRUN_* | SALLOC_* | SQUEUE_* | SACCT_* | SCANCEL_* | \
    SCONTROL_* | PMI_* | PMI2_* | PMIX_* | OMPI_* | PRTE_* | MASTER_ADDR | MASTER_PORT | RANK | \
    LOCAL_RANK | GROUP_RANK | ROLE_RANK | ROLE_NAME | WORLD_SIZE | LOCAL_WORLD_SIZE | \
    GROUP_WORLD_SIZE | ROLE_WORLD_SIZE | PET_* | TORCHELASTIC_* | ORCHESTRATE_* | \
    CUDA_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ROCR_VISIBLE_DEVICES | ZE_AFFINITY_MASK)
      unset "$name" ;;
  esac
done
exec "$@"
"""
SEPARATOR = "\x1f"  # ASCII's unit separator: neither a path nor a reason has it
# Name of squeue's field -> the width to which it is cut.
QUEUE_FIELDS = {
    "JobArrayID": 60, "Name": 80, "State": 30, "Reason": 300, "RestartCnt": 12, "exit_code": 12,
    "StartTime": 30,
}  # fmt: skip
PATH_WIDTH_BYTES = 4200  # a path has 4095 bytes at most (PATH_MAX of Linux)
ACCOUNTING_FIELDS = ("JobID", "JobName", "State", "Reason", "ExitCode")
ARRAY_ID = re.compile(r"(\d+)_\[([\d,:-]+)(?:%\d+)?\]")
ARRAY_LIMIT = 100_000


@dataclass(frozen=True)
class Job:
    """What Slurm says of a job, or of one element of an array.

    Args:
        id: `12`, or `12_3` for an element.
        name: the job's name.
        state: Slurm's name for its state.
        reason: why it waits or has ended, as Slurm says it.
        restarts: how often it was requeued; 0 where it is not known.
        code: exit code of the batch script, 128 and the number for a signal; 0 where not known.
        start: when it started or is expected to start, as Slurm prints it; "" where not known.
        work_dir: its working folder; "" where it was not asked for.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    restarts: int = 0
    code: int = 0
    start: str = ""
    work_dir: str = ""


def call(site: Site, *argv: str, stdin: bytes | None = None, timeout_s: float = 60.0) -> Completed:
    """Run one of Slurm's commands without what belongs to an outer job.

    Raises BackendError if the site has no such command, or gives no answer.
    """
    command = ["sh", "-c", SCRUB, "sh", *argv]
    done = site.run(command, stdin=stdin, timeout_s=timeout_s)
    if done.code == COMMAND_MISSING:
        raise no_such_command(site.label, argv[0])
    return done


def failure(site: Site, done: Completed, what: str) -> NoAnswer:
    """The error for a command of Slurm's that failed: its own words, and what to do."""
    said = spoken(done.stderr) or spoken(done.stdout) or f"the command left with {done.code}"
    advice = next((do for words, do in ADVICE.items() if words in said.lower()), "")
    return NoAnswer(f"{site.label}: {what}: {said}" + (f"\n  fix: {advice}" if advice else ""))


def queue(site: Site, ids: Sequence[str], cluster: str = "") -> list[Job]:
    """What slurmctld knows of jobs: all that wait and run, and those that ended minutes ago.

    Args:
        ids: at least one, of jobs, arrays or elements. Those that it does not know are left out.
        cluster: the cluster's name where sbatch has given one.
    """
    done = call(site, *_squeue(cluster), f"--jobs={','.join(ids)}", _format(QUEUE_FIELDS))
    if done.code != 0 and "Invalid job id" in done.stderr:
        return []  # said only where it was asked for a single one
    if done.code != 0:
        raise failure(site, done, "cannot ask for jobs")
    return parse_queue(done.stdout)


def queue_of_name(site: Site, name: str) -> list[Job]:
    """The user's own jobs of a name that slurmctld knows, with their working folders."""
    fields = {**QUEUE_FIELDS, "WorkDir": PATH_WIDTH_BYTES}
    done = call(site, *_squeue(""), "--me", f"--name={name}", _format(fields))
    if done.code != 0:
        raise failure(site, done, "cannot ask for jobs")
    return parse_queue(done.stdout, len(fields))


def _squeue(cluster: str) -> list[str]:
    argv = ["squeue", "--noheader", "--array", "--states=all"]
    return [*argv, f"--clusters={cluster}"] if cluster else argv


def _format(fields: dict[str, int]) -> str:
    return "--Format=" + ",".join(f"{name}:{width}{SEPARATOR}" for name, width in fields.items())


def parse_queue(text: str, num_fields: int = len(QUEUE_FIELDS)) -> list[Job]:
    """The jobs in squeue's answer; rows that are no jobs are left out.

    Args:
        num_fields: how many were asked for: those of QUEUE_FIELDS, and perhaps the working folder.
    """
    cells = [cell.strip() for cell in text.split(SEPARATOR)]
    starts = range(0, len(cells) - num_fields, num_fields)
    rows = (cells[start : start + num_fields] for start in starts)
    return [job for row in rows if (job := _queued(row)) is not None]


def _queued(row: Sequence[str]) -> Job | None:
    id_, name, state, reason, restarts, status, start, *rest = row
    id_ = id_.split()[-1] if id_.split() else ""  # behind the heading `CLUSTER: name`
    if not re.fullmatch(r"\d+(_\d+)?", id_):
        return None
    # 22.05 shows a wait status here, 24.11 what sacct shows.
    code = exit_code(int(status)) if status.isdecimal() else accounted_code(status)
    count = int(restarts) if restarts.isdecimal() else 0
    start = "" if start == "N/A" else start
    return Job(id_, name, state, reason, count, code, start, *rest)


def exit_code(status: int) -> int:
    """The exit code in a wait status (wait(2)): 128 and the number for a signal."""
    return 128 + (status & 127) if status & 127 else status >> 8


def accounting(site: Site, ids: Sequence[str], cluster: str = "") -> list[Job]:
    """What the accounting database knows of jobs, which is seconds behind; [] if there is none."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(ids)}"]
    argv += [f"--format={','.join(ACCOUNTING_FIELDS)}"]
    done = call(site, *argv, *([f"--clusters={cluster}"] if cluster else []))
    if done.code != 0 and "accounting storage is disabled" in done.stderr:
        return []
    if done.code != 0:
        raise failure(site, done, "cannot ask for jobs")
    return parse_accounting(done.stdout)


def parse_accounting(text: str) -> list[Job]:
    """The jobs in sacct's answer, arrays expanded; lines that are no jobs are left out."""
    jobs = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < len(ACCOUNTING_FIELDS):
            continue
        # A job's name is the only field that could have the separator in it.
        id_, state, reason, codes = cells[0], *cells[-3:]
        name = "|".join(cells[1:-3])
        for one in expand(id_):
            jobs.append(Job(one, name, state, reason, code=accounted_code(codes)))
    return jobs


def accounted_code(codes: str) -> int:
    """The exit code in sacct's `CODE:SIGNAL`."""
    match = re.fullmatch(r"(\d+):(\d+)", codes)
    if match is None:
        return 0
    return 128 + int(match[2]) if int(match[2]) else int(match[1])


def expand(id_: str) -> list[str]:
    """The elements in an id such as `12_[0-3,7%2]`, or the id itself; [] if it is none.

    An array with more than 100,000 elements is [] too.
    """
    if re.fullmatch(r"\d+(_\d+)?", id_):
        return [id_]
    match = ARRAY_ID.fullmatch(id_)
    if match is None:
        return []
    indices: list[int] = []
    for part in match[2].split(","):
        found = _indices(part)
        if len(indices) + len(found) > ARRAY_LIMIT:
            return []
        indices += found
    return [f"{match[1]}_{index}" for index in indices]


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as sbatch's --array takes them: `0-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _indices(part: str) -> Sequence[int]:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", part)
    if match is None:
        return ()
    first = int(match[1])
    return range(first, int(match[2] or first) + 1, int(match[3] or 1))


def job_id(answer: str) -> tuple[str, str] | None:
    """Job and cluster ("" without) in the answer of `sbatch --parsable`; None if it has none."""
    for line in reversed(answer.splitlines()):
        match = re.fullmatch(r"(\d+)(?:;(\S*))?", line.strip())
        if match:
            return match[1], match[2] or ""
    return None


def spoken(text: str) -> str:
    """What a command said, on one line, without its own name in front of each."""
    lines = (
        re.sub(r"^(\w+: )?(slurm_\w+ )?(error: )?", "", line.strip()) for line in text.splitlines()
    )
    return "; ".join(dict.fromkeys(printable(line) for line in lines if line))


def joined(*parts: str) -> str:
    """The parts that say something, one behind the other."""
    return "; ".join(part for part in parts if part)


# What Slurm says (src/common/slurm_errno.c, 22.05) and what to do. The first that fits holds.
ADVICE = {
    "invalid account or account/partition": "name an account of yours in the cluster's profile "
    "(`sacctmgr show associations user=$USER` lists them); SBATCH_* variables are not used",
    "invalid partition": "correct the partition in the profile: `sinfo -s` lists them",
    "invalid qos": "correct the qos in the profile: `sacctmgr show associations user=$USER "
    "format=qos` lists yours",
    "requested reservation is invalid": "correct the reservation: `scontrol show reservation`",
    "memory specification": "no node has that much memory: compare resources.memory with "
    "`sinfo -o '%P %m'`",
    "node configuration is not available": "no nodes there have that many GPUs, CPUs or that much "
    "memory: compare resources with `sinfo -o '%P %D %c %m %G %f'`",
    "invalid generic resource": "the cluster has no such GPU type: compare resources.gpu_type "
    "with `sinfo -o '%P %G'`",
    "invalid feature": "no node has that constraint: compare with `sinfo -o '%P %f'`",
    "time limit": "shorten resources.time_limit: `sinfo -o '%P %l'` shows each partition's limit",
    "more processors requested": "ask for fewer CPUs or ranks per node",
    "node count specification invalid": "compare resources.nodes with `sinfo -s`",
    "invalid job array specification": "the site takes no array of so many elements: shorten the "
    "sweep (`scontrol show config | grep MaxArraySize`)",
    "job dependency problem": "a job of `after` is not known to Slurm any more: leave it out",
    "qosmaxsubmitjob": "wait until one of your jobs has ended: you may have no more in the queue",
    "job violates accounting/qos policy": "it asks for more than account or QOS allow, in time, "
    "size or number of jobs: `sacctmgr show qos` shows the limits",
    "unable to contact slurm controller": "slurmctld does not answer: `scontrol ping`; ask the "
    "site's administrators if that lasts",
    "access/permission denied": "you may not do this here: is it a job of yours, may you use this "
    "partition?",
    "pathname of a file, directory or other parameter too long": "choose a shorter runs root",
}
