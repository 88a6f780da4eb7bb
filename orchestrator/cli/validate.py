"""`orchestrate validate`: all faults of a job file at once."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.common import (
    cluster_options,
    job_argument,
    json_option,
    load_job,
    print_json,
    say_cluster,
    set_option,
)
from orchestrator.errors import FaultsError


@click.command(name="validate")
@job_argument
@cluster_options
@set_option
@json_option
def command(
    job: Path, cluster: str | None, clusters_file: str | None, sets: tuple[str, ...], as_json: bool
) -> None:
    """Check JOB.YAML and show each fault with its line and what to do. Exit code 2 if there is one.

    \b
    Examples:
      orchestrate validate job.yaml
      orchestrate validate job.yaml --cluster big --set resources.nodes=8
      orchestrate validate job.yaml --json | jq '.faults[].message'
    """
    try:
        loaded = load_job(job, cluster, clusters_file, sets)
        plan = loaded.plan()
    except FaultsError as error:
        if not as_json:
            raise
        print_json({"valid": False, "faults": [fault.as_dict() for fault in error.faults]})
        raise click.exceptions.Exit(2) from None
    if as_json:
        print_json({"valid": True, "faults": []})
        return
    click.echo(
        f"{job}: valid. {plan.name}: {plan.num_nodes} nodes x {plan.ranks_per_node} ranks, "
        f"{plan.trainer['strategy']}, {say_cluster(loaded.profile, loaded.source)}"
    )
