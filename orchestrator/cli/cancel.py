"""`orchestrate cancel`: stop a run, with a checkpoint or at once."""

from __future__ import annotations

import click

from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile


@click.command(name="cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@click.option("--now", is_flag=True, help="Kill at once; steps since the last checkpoint are lost.")
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, now: bool
) -> None:
    """Stop each RUN after a checkpoint at the next step boundary. Submitting it again continues it.

    \b
    Examples:
      orchestrate cancel demo
      orchestrate cancel demo --now
    """
    profile, _ = load_profile(cluster, clusters_file)
    backend = backend_of(profile)
    for handle in [find_run(run, profile) for run in runs]:
        click.echo(backend.cancel(handle, now=now))
