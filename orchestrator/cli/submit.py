"""`orchestrate submit`: check, plan, render, send."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    job_argument,
    load_job,
    runs_root,
    say_cluster,
    set_option,
)
from orchestrator.cli.render import listing


@click.command(name="submit")
@job_argument
@cluster_options
@set_option
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
    dry_run: bool,
    follow: bool,
    fresh: bool,
) -> None:
    """Start the run of JOB.YAML, or continue it.

    The name is the run; a finished run is not run again.

    ${NAME} and ${NAME:-default} in values are taken from the environment, here and nowhere else.
    With --watch the exit code is the run's: 0 done, 1 otherwise.

    \b
    Examples:
      orchestrate submit job.yaml --watch
      orchestrate submit job.yaml --dry-run
      orchestrate submit job.yaml --fresh --set train.steps=50
    """
    from orchestrator.render import render

    loaded = load_job(job, cluster, clusters_file, sets, expand_variables=True)
    rendered = render(loaded.plan())
    click.echo(f"{rendered.name}: {say_cluster(loaded.profile, loaded.source)}")
    if dry_run:
        click.echo(listing(rendered.files), nl=False)
        return
    backend = backend_of(loaded.profile)
    submission = backend.submit(
        rendered,
        runs_root=runs_root(loaded.profile),
        workdir=job.resolve().parent,
        job_text=loaded.document.text,
        fresh=fresh,
    )
    click.echo(submission.message)
    if follow:
        from orchestrator.cli.watch import watch_run

        raise click.exceptions.Exit(watch_run(backend, submission.handle))
    click.echo(f"follow it: orchestrate watch {submission.handle.run_dir}")
