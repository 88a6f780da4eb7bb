"""`orchestrate status`: the state of runs."""

from __future__ import annotations

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    find_run,
    json_option,
    load_profile,
    print_json,
    status_words,
)
from orchestrator.cli.table import status_table


@click.command(name="status")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@json_option
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, as_json: bool
) -> None:
    """Show the state of each RUN (a run's name, or its folder): one query for all of them.

    \b
    Examples:
      orchestrate status demo
      orchestrate status demo other --json
    """
    profile, _ = load_profile(cluster, clusters_file)
    backend = backend_of(profile)
    statuses = backend.status([find_run(run, profile) for run in runs])
    if as_json:
        print_json([status_words(status) for status in statuses])
    else:
        click.echo(status_table(statuses))
