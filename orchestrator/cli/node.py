"""`orchestrate node`: take a simulated node of a local run down, and bring it up again."""

from __future__ import annotations

import click

from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile, say
from orchestrator.errors import UserError


@click.command(name="node")
@click.argument("run", metavar="RUN")
@click.argument("number", type=int, metavar="NUMBER")
@click.argument("state", type=click.Choice(["down", "up"]))
@cluster_options
def command(
    run: str, number: int, state: str, cluster: str | None, clusters_file: str | None
) -> None:
    """Take node NUMBER of a run on this machine down, or bring it up again, to try what follows.

    What runs on a node that goes down is killed at once. A run with a range of nodes goes on with
    those that are left, and with more when they are up again; another run waits for the node.

    \b
    Examples:
      orchestrate node demo 1 down
      orchestrate node demo 1 up
    """
    from orchestrator.backends.simulated import set_node

    profile, _ = load_profile(cluster, clusters_file)
    if backend_of(profile).name != "local":
        raise UserError(
            f"node: the nodes of cluster {profile.name} are real ones; this is for runs on this "
            "machine alone (--cluster local)"
        )
    handle = find_run(run, profile)
    if handle.num_elements:
        raise UserError(f"{run} is a sweep: name one of its elements, as in {run}/0")
    say(set_node(handle.run_dir, number, up=state == "up"))
