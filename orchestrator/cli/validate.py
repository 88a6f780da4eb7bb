"""`orchestrate validate`: all faults of a job file at once."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.common import (
    cluster_options,
    faults_as_json,
    job_argument,
    json_option,
    load_job,
    print_json,
    say,
    say_cluster,
    set_option,
)


@click.command(name="validate")
@job_argument
@cluster_options
@set_option
@json_option
def command(
    job: Path, cluster: str | None, clusters_file: str | None, sets: tuple[str, ...], as_json: bool
) -> None:
    """Check JOB.YAML and show each fault with its line and what to do. Exit code 2 if there is one.

    ${NAME} is left as it is: it stands in free texts only, and submit replaces it.

    \b
    Examples:
      orchestrate validate job.yaml
      orchestrate validate job.yaml --cluster big --set resources.nodes=8
      orchestrate validate job.yaml --json | jq '.faults[].message'
    """
    with faults_as_json(as_json):
        loaded = load_job(job, cluster, clusters_file, sets)
        plan = loaded.plan()
    if as_json:
        print_json({"valid": True, "faults": []})
        return
    say(
        f"{job}: valid. {plan.name}: {plan.num_nodes} nodes x {plan.ranks_per_node} ranks, "
        f"{plan.trainer['strategy']}, {say_cluster(loaded.profile, loaded.source)}"
    )
