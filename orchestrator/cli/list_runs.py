"""`orchestrate list`: all runs of a cluster."""

from __future__ import annotations

import re

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    faults_as_json,
    json_option,
    load_profile,
    print_json,
    runs_root,
    say,
    status_words,
    statuses_of,
)
from orchestrator.cli.table import status_table

OLD = r"\.old-[0-9]+$"


@click.command(name="list")
@cluster_options
@json_option
@click.option("--all", "with_old", is_flag=True,
              help="Also the old folders that submit --fresh has put aside.")  # fmt: skip
def command(cluster: str | None, clusters_file: str | None, as_json: bool, with_old: bool) -> None:
    """List the runs under the cluster's runs root with their states.

    \b
    Examples:
      orchestrate list
      orchestrate list --cluster big --json
    """
    with faults_as_json(as_json):
        profile, source = load_profile(cluster, clusters_file)
        backend = backend_of(profile)
        found = backend.list(runs_root(profile))
        handles = [h for h in found if with_old or not re.search(OLD, h.run)]
        statuses = statuses_of(backend, handles)
    if as_json:
        print_json([status_words(*pair) for pair in zip(statuses, handles, strict=True)])
    elif statuses:
        say(status_table(statuses))
    else:
        say(f"no runs under {runs_root(profile)} (cluster {profile.name}, {source.label})")
