"""`orchestrate submit`: check, plan, render, send."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    cluster_options,
    job_argument,
    load_job,
    runs_root,
    say,
    say_cluster,
    say_data,
    set_option,
    shell_path,
)
from orchestrator.cli.place import backend_for
from orchestrator.cli.policies import policy_option
from orchestrator.cli.render import listing
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.plan import LaunchPlan
    from orchestrator.profiles import ClusterProfile

# Each rank is a Python process with torch, of some 200 MB; beyond this the machine only swaps.
RANKS_PER_CORE = 64


@click.command(name="submit")
@job_argument
@cluster_options
@set_option
@policy_option
@click.option(
    "--dry-run", is_flag=True, help="Show what would be sent, and stop before sending it."
)
@click.option("--watch", "follow", is_flag=True, help="Follow the run; Ctrl-C leaves it alone.")
@click.option("--fresh", is_flag=True,
              help="Start anew: the old run folder is renamed, not deleted.")  # fmt: skip
def command(
    job: Path,
    cluster: str | None,
    clusters_file: str | None,
    sets: tuple[str, ...],
    policy_file: str | None,
    dry_run: bool,
    follow: bool,
    fresh: bool,
) -> None:
    """Start the run of JOB.YAML, or continue it.

    The name is the run; a finished run is not run again.

    ${NAME} and ${NAME:-default} are taken from the environment, here and nowhere else, and in free
    texts only: paths, env, model.args.
    With --watch the exit code is the run's: 0 done, 1 otherwise.

    \b
    Examples:
      orchestrate submit job.yaml --watch
      orchestrate submit job.yaml --dry-run
      orchestrate submit job.yaml --fresh --set train.steps=50
    """
    from orchestrator.backends.base import After
    from orchestrator.render import render

    loaded = load_job(
        job, cluster, clusters_file, sets, expand_variables=True, policy_file=policy_file
    )
    plan = loaded.plan()
    if plan.target == "local":
        _check_size(plan)
    rendered = render(plan)
    say(f"{rendered.name}: {say_cluster(loaded.profile, loaded.source)}")
    if dry_run:
        say_data(listing(rendered.files))
        return
    backend = backend_for(loaded)
    submission = backend.submit(
        rendered,
        runs_root=runs_root(loaded.profile),
        workdir=workdir_of(job, loaded.profile),
        job_text=loaded.document.text,
        fresh=fresh,
        after=[After(kind, target) for target, kind in plan.after],
    )
    say(submission.message)
    if submission.started:
        from orchestrator.cli.planning import keep_plan

        keep_plan(backend, submission.handle, loaded, job)
    if follow:
        from orchestrator.cli.watch import watch_run

        raise click.exceptions.Exit(watch_run(backend, submission.handle, only_new=True))
    say(f"follow it: orchestrate watch {shell_path(submission.handle.run_dir)}")


def workdir_of(job: Path, profile: ClusterProfile) -> Path:
    """The folder that relative paths are relative to, on the machine where the job will run."""
    if profile.workdir is not None:
        return Path(profile.workdir)
    return Path(".") if profile.ssh else job.resolve().parent  # over ssh one begins at home


def _check_size(plan: LaunchPlan) -> None:
    """Raises UserError where this machine cannot stand for so many nodes."""
    cores = len(os.sched_getaffinity(0))
    at_once = min(plan.sweep.at_once or 1, len(plan.sweep.values)) if plan.sweep else 1
    if plan.world_size * at_once > RANKS_PER_CORE * cores:
        fewer = "sweep.at_once=1" if at_once > 1 else "resources.nodes=2"
        times = f" for each of {at_once} elements at once" if at_once > 1 else ""
        raise UserError(
            f"resources: {plan.nodes_words} x {plan.ranks_per_node} ranks are "
            f"{plan.world_size} processes{times}, and this machine has {cores} core(s): at most "
            f"{RANKS_PER_CORE} for each, {RANKS_PER_CORE * cores} in all. Choose a real cluster "
            f"with --cluster, or fewer for this time: --set {fewer}"
        )
