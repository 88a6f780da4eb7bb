"""`orchestrate status`: the state of runs."""

from __future__ import annotations

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    faults_as_json,
    find_run,
    json_option,
    load_profile,
    print_json,
    say,
    status_words,
    statuses_of,
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
    with faults_as_json(as_json):
        profile, _ = load_profile(cluster, clusters_file)
        handles = [find_run(run, profile) for run in runs]
        statuses = statuses_of(backend_of(profile), handles)
    if as_json:
        print_json([status_words(*pair) for pair in zip(statuses, handles, strict=True)])
    else:
        say(status_table(statuses))
