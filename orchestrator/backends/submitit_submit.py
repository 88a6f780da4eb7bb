"""Submits a run through submitit instead of a batch script of our own.

submitit is imported by a program of its own (trainer/submitit_job.py), with the environment and the
time limit of every other command that is run on a site.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.backends import folder, slurm_commands
from orchestrator.backends.base import RenderedFiles
from orchestrator.backends.site import Completed, LocalSite, Site
from orchestrator.errors import BackendError, UserError

SETTINGS = "submitit.json"
PROGRAM = "submitit_job.py"
NOT_SBATCHS = ("additional_parameters", "signal_delay_s", "srun_args")


def is_submitits(files: Sequence[str] | Mapping[str, str]) -> bool:
    """Whether these rendered files are those of a run that goes by submitit."""
    return SETTINGS in files


def check(site: Site, run_dir: Path) -> None:
    """Raises UserError for a run folder that submitit cannot carry, and BackendError where it is
    not installed."""
    # Its paths stand in directives: a line break would end those, and Slurm replaces %-signs.
    if re.search(r"[\x00-\x1f\x7f%\\]", str(run_dir)):
        raise UserError(
            f"{str(run_dir)!r}: submitit has no way to quote %, a backslash or a control character "
            "in the name of the run folder: choose a runs root without one"
        )
    if not isinstance(site, LocalSite):
        raise UserError(f"{site.label}: submitit submits from the machine on which it runs only")
    if importlib.util.find_spec("submitit") is None:
        raise BackendError(
            f"launcher: submitit needs the package submitit, which {sys.executable} does not have. "
            "Install it there and in the job's Python: pip install 'orchestrate-training[submitit]'"
        )


def send(site: Site, run_dir: Path, workdir: Path, options: Sequence[str]) -> Completed:
    """Have submitit submit the run, whose files are written; the end of its output is the job's id.

    Args:
        options: of sbatch, as `--NAME=VALUE`, over those that were rendered.
    """
    program = str(run_dir / "launch" / PROGRAM)
    argv = [sys.executable, program, str(run_dir), str(workdir), *options]
    return slurm_commands.call(site, *argv, timeout_s=slurm_commands.SBATCH_TIMEOUT_S)


def sbatch_options(rendered: RenderedFiles) -> list[str]:
    """The options that submitit will give to sbatch, but for the signal and paths."""
    parameters = folder.parsed(rendered.files[SETTINGS].encode())["parameters"]
    named = {k: v for k, v in parameters.items() if k not in NOT_SBATCHS}
    named |= parameters["additional_parameters"]
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in named.items()
    ]


def stop_options(rendered_names: Sequence[str]) -> tuple[str, ...]:
    """How `scancel` asks a run for its last checkpoint: by TERM to the tasks, or, where our own
    batch script runs, to that alone: its trap drains."""
    if is_submitits(rendered_names):
        return ("--signal=TERM",)
    return ("--signal=TERM", "--batch")
