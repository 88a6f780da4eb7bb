"""`orchestrate validate`: all faults of a job file at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    Loaded,
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
from orchestrator.cli.place import backend_for
from orchestrator.cli.policies import policy_option

if TYPE_CHECKING:
    from orchestrator.plan import LaunchPlan


@click.command(name="validate")
@job_argument
@cluster_options
@set_option
@policy_option
@click.option("--online", is_flag=True, help="Ask the scheduler too whether it would take it.")
@json_option
def command(
    job: Path,
    cluster: str | None,
    clusters_file: str | None,
    sets: tuple[str, ...],
    policy_file: str | None,
    online: bool,
    as_json: bool,
) -> None:
    """Check JOB.YAML and show each fault with its line and what to do. Exit code 2 if there is one.

    ${NAME} is left as it is: it stands in free texts only, and submit replaces it.

    \b
    Examples:
      orchestrate validate job.yaml
      orchestrate validate job.yaml --cluster big --set resources.nodes=8
      orchestrate validate job.yaml --cluster big --online
      orchestrate validate job.yaml --json | jq '.faults[].message'
    """
    with faults_as_json(as_json):
        loaded = load_job(job, cluster, clusters_file, sets, policy_file=policy_file)
        plan = loaded.plan()
        answer = _ask_scheduler(loaded, plan) if online else None
    if as_json:
        found = {"valid": True, "faults": [], "warnings": [w.as_dict() for w in loaded.warnings]}
        print_json(found | ({"scheduler": answer} if online else {}))
        return
    sweep = f", a sweep of {len(plan.sweep.values)} such runs" if plan.sweep else ""
    say(
        f"{job}: valid. {plan.name}: {plan.nodes_words} x {plan.ranks_per_node} ranks, "
        f"{plan.trainer['parallelism']['strategy']}{sweep}, "
        f"{say_cluster(loaded.profile, loaded.source)}"
    )
    if answer:
        say(answer)


def _ask_scheduler(loaded: Loaded, plan: LaunchPlan) -> str:
    from orchestrator.render import render

    return backend_for(loaded).online_check(render(plan))
