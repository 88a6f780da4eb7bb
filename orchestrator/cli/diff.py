"""`orchestrate diff`: what has changed since a job was committed, or submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import click

from orchestrator.cli.common import (
    backend_of,
    clusters_options,
    faults_as_json,
    job_argument,
    json_option,
    print_json,
    say,
    say_data,
    set_option,
)
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.cli.committed import Change
    from orchestrator.cli.common import Loaded
    from orchestrator.render import Rendered

folder_type = click.Path(path_type=Path, file_okay=False)


class AsksServer(Protocol):
    """A backend whose cluster tells what it would make of a submit."""

    def dry_run(
        self, rendered: Rendered, *, force: bool = False
    ) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]: ...


@click.command(name="diff")
@job_argument
@click.argument("folder", type=folder_type, required=False, metavar="[DIR]")
@click.option(
    "--live", is_flag=True, help="Compare with the objects in the cluster, by a server's dry run."
)
@clusters_options
@set_option
@json_option
def command(
    job: Path,
    folder: Path | None,
    live: bool,
    clusters: tuple[str, ...],
    clusters_file: str | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show how what JOB.YAML becomes differs from DIR, or from the cluster. Exit code 1 if it does.

    DIR is a folder that `render -o` has written. What API server and controllers write themselves
    is left out of --live.

    \b
    Examples:
      orchestrate diff job.yaml deploy/job --cluster east --cluster west
      orchestrate diff job.yaml --live --cluster east
    """
    from orchestrator.cli.rendering import Wanted, render_each

    with faults_as_json(as_json):
        if folder is None and not live:
            raise UserError("what to compare with? Give DIR, or --live for the cluster")
        # A submit replaces variables, and what is committed has none.
        expand = folder is None
        each = render_each(Wanted(job, clusters, clusters_file, sets, expand_variables=expand))
        found = _folder_changes(folder, each) if folder is not None else []
        for loaded, rendered in each if live else ():
            found += _live_changes(loaded, rendered)
    _show(found, as_json)
    if found:
        raise click.exceptions.Exit(1)


def _folder_changes(folder: Path, each: Sequence[tuple[Loaded, Rendered]]) -> list[Change]:
    from orchestrator.cli.committed import changes, files_of

    return changes(folder, files_of(each))


def _live_changes(loaded: Loaded, rendered: Rendered) -> list[Change]:
    """What a submit would change in the cluster, object by object."""
    from orchestrator.cli.committed import Change, unified_diff
    from orchestrator.cli.rendering import is_kubernetes
    from orchestrator.live_diff import compared

    if not is_kubernetes(rendered):
        raise UserError(
            f"--live: cluster {loaded.profile.name} is for {rendered.target}, which has no objects "
            "to compare with. Give DIR, or a --cluster for Kubernetes."
        )
    backend = cast("AsksServer", backend_of(loaded.profile))
    found = []
    for live, wanted in backend.dry_run(rendered, force=True):
        name = f"{loaded.profile.name}/{wanted['kind']}/{wanted['metadata']['name']}"
        before, after = compared(live, wanted)
        if before != after:
            state = "missing" if before is None else "different"
            found.append(Change(name, state, unified_diff(name, before, after)))
    return found


def _show(found: Sequence[Change], as_json: bool) -> None:
    if as_json:
        print_json({"same": not found, "files": [change._asdict() for change in found]})
        return
    say_data("".join(change.diff for change in found))
    words = ", ".join(f"{change.path} {change.state}" for change in found)
    say(words or "no difference", err=bool(found))
