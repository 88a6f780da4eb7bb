"""`orchestrate list`: all runs of a cluster."""

from __future__ import annotations

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    json_option,
    load_profile,
    print_json,
    runs_root,
    status_words,
)
from orchestrator.cli.table import status_table


@click.command(name="list")
@cluster_options
@json_option
def command(cluster: str | None, clusters_file: str | None, as_json: bool) -> None:
    """List the runs under the cluster's runs root with their states.

    \b
    Examples:
      orchestrate list
      orchestrate list --cluster big --json
    """
    profile, source = load_profile(cluster, clusters_file)
    backend = backend_of(profile)
    statuses = backend.status(backend.list(runs_root(profile)))
    if as_json:
        print_json([status_words(status) for status in statuses])
    elif statuses:
        click.echo(status_table(statuses))
    else:
        click.echo(f"no runs under {runs_root(profile)} (cluster {profile.name}, {source.label})")
