"""What a Slurm site needs: facts of the cluster profile, or of a job file's `clusters.NAME`."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from orchestrator.spec.base import Duration, Part, Problem, TypeWords, as_tuple

# sbatch(1), "OPTIONS": long names. These are set by the job file or by the script itself.
OWN_OPTIONS = {
    "array": "sweep",
    "chdir": "the run folder",
    "cpus-per-task": "resources.cpus_per_rank",
    "dependency": "after",
    "error": "the run folder",
    "export": "env",
    "gpus-per-node": "resources.gpus_per_node",
    "gpus-per-task": "resources.gpus_per_node",
    "het-group": "one kind of node only: ranks of one job must be alike",
    "hetjob": "one kind of node only: ranks of one job must be alike",
    "input": "nothing: the job reads no input",
    "job-name": "name",
    "kill-on-invalid-dep": "after",
    "mem": "resources.memory",
    "no-requeue": "attempts.requeues",
    "nodes": "resources.nodes",
    "ntasks": "resources.ranks_per_node",
    "ntasks-per-node": "resources.ranks_per_node",
    "open-mode": "the script",
    "output": "the run folder",
    "packjob": "one kind of node only: ranks of one job must be alike",
    "parsable": "the backend",
    "requeue": "attempts.requeues",
    "signal": "timeouts.shutdown and slurm.signal",
    "test-only": "orchestrate validate --online",
    "time": "resources.time_limit",
    "wait": "orchestrate watch",
    "wrap": "the script",
}
OPTION_PATTERN = r"[a-z][a-z0-9-]*"

# A line break in a directive would end it, and what follows would be another line of the script.
LINE_PATTERN = r"^[^\x00-\x1f\x7f]+$"
Line = Annotated[str, Field(pattern=LINE_PATTERN), TypeWords("text on one line")]
Lines = Annotated[
    tuple[Line, ...],
    BeforeValidator(as_tuple),
    WithJsonSchema({"type": "array", "items": {"type": "string", "pattern": LINE_PATTERN}}),
    TypeWords("list of texts on one line each"),
]


# A comma or colon would split a mount; NVIDIA/pyxis README, "--container-mounts".
MOUNT_PATTERN = r"^[^\x00-\x1f\x7f,:]+:[^\x00-\x1f\x7f,:]+(:[a-z]+)?$"
Mount = Annotated[str, Field(pattern=MOUNT_PATTERN), TypeWords("mount (FROM:TO or FROM:TO:ro)")]
Mounts = Annotated[
    tuple[Mount, ...],
    BeforeValidator(as_tuple),
    WithJsonSchema({"type": "array", "items": {"type": "string", "pattern": MOUNT_PATTERN}}),
    TypeWords("list of mounts (FROM:TO or FROM:TO:ro)"),
]


class Container(Part):
    """A container in which each node's ranks run."""

    runtime: Literal["pyxis", "apptainer"] = Field(
        description="pyxis: srun --container-image and the like; apptainer: apptainer exec. "
        "Neither was tried on a real one: tests record what they would be given.",
    )
    image: Line = Field(
        description="The image as the runtime names it; pyxis has # after the registry's host."
    )
    mounts: Mounts = Field(
        default=(),
        description="Folders of the node to mount, beside the run folder and the job's folder.",
    )


class Slurm(Part):
    """Directives and set-up of the batch script."""

    partition: Line | None = Field(default=None, description="Slurm: --partition.")
    account: Line | None = Field(default=None, description="Slurm: --account.")
    qos: Line | None = Field(default=None, description="Slurm: --qos.")
    constraint: Line | None = Field(default=None, description="Slurm: --constraint.")
    reservation: Line | None = Field(default=None, description="Slurm: --reservation.")
    nodelist: Line | None = Field(default=None, description="Slurm: --nodelist.")
    exclude: Line | None = Field(default=None, description="Slurm: --exclude.")
    exclusive: bool = Field(default=False, description="No other job on the nodes: --exclusive.")
    begin: Line | None = Field(default=None, description="Slurm: --begin.")
    comment: Line | None = Field(default=None, description="Slurm: --comment.")
    mail_type: Line | None = Field(default=None, description="Slurm: --mail-type.")
    mail_user: Line | None = Field(default=None, description="Slurm: --mail-user.")
    gpus: Literal["gpus-per-node", "gres"] = Field(
        default="gpus-per-node",
        description="How GPUs are asked for: --gpus-per-node, or --gres=gpu:N where a site refuses "
        "the former.",
    )
    signal: Literal["USR1", "USR2", "HUP"] = Field(
        default="USR1",
        description="Signal by which Slurm announces the time limit to the batch script, "
        "timeouts.shutdown and 30 s before it: --signal=B:USR1@S. Another one where something "
        "takes USR1.",
    )
    grace: Duration | None = Field(
        default=None,
        description="How long a preempted job has before Slurm kills it (GraceTime of the "
        "partition or QOS); timeouts.shutdown has to be at most that. By default not checked.",
    )
    modules: Lines = Field(default=(), description="Modules to load, in this order.")
    setup: Lines = Field(
        default=(), description="Shell lines that run first on the first node, as they are."
    )
    cleanup: Lines = Field(
        default=(), description="Shell lines that run last on the first node, as they are."
    )
    venv: Line | None = Field(
        default=None, description="Folder of a virtual environment to activate, on the cluster."
    )
    conda: Line | None = Field(
        default=None, description="Name or folder of a conda environment to activate."
    )
    container: Container | None = Field(
        default=None, description="Run the nodes' ranks in a container."
    )
    python: Line = Field(
        default="python3", description="Python that starts node.py and the trainer on each node."
    )
    options: dict[str, str | None] = Field(
        default_factory=dict,
        description="More options of sbatch by their long name without dashes; null for one "
        "without a value.",
    )


def slurm_problems(slurm: Slurm) -> Iterator[Problem]:
    """Yield what is wrong between the keys of `slurm`, paths from there."""
    for name, value in slurm.options.items():
        path = ("options", name)
        if name in OWN_OPTIONS:
            yield Problem(path, f"--{name} is set from {OWN_OPTIONS[name]}", "remove it", "key")
        elif not re.fullmatch(OPTION_PATTERN, name):
            yield Problem(
                path,
                "not the long name of an option of sbatch",
                "write it without dashes before it, such as nice or licenses",
                "key",
            )
        elif value is not None and not re.fullmatch(LINE_PATTERN, value):
            yield Problem(path, "a line break or control character ends the directive", "remove it")
