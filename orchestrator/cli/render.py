"""`orchestrate render`: the files that a submit would send."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    clusters_options,
    faults_as_json,
    job_argument,
    json_option,
    print_json,
    say,
    say_data,
    set_option,
)
from orchestrator.cli.policies import policy_option
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.common import Loaded
    from orchestrator.render import Rendered

    Each = Sequence[tuple[Loaded, Rendered]]

folder_type = click.Path(path_type=Path, file_okay=False)


@click.command(name="render")
@job_argument
@clusters_options
@click.option("--target", metavar="TARGET", help="Render for this target, by its neutral profile.")
@click.option("-o", "--output", type=folder_type, metavar="DIR",
              help="Write the files into DIR instead of printing them; for Kubernetes a kustomize "
              "base and an overlay for each cluster.")  # fmt: skip
@click.option("--check", type=folder_type, metavar="DIR",
              help="Write nothing: show how DIR differs from what -o would write, and exit with 1 "
              "if it does.")  # fmt: skip
@set_option
@policy_option
@json_option
def command(
    job: Path,
    clusters: tuple[str, ...],
    clusters_file: str | None,
    target: str | None,
    output: Path | None,
    check: Path | None,
    sets: tuple[str, ...],
    policy_file: str | None,
    as_json: bool,
) -> None:
    """Print or write the files that JOB.YAML becomes: the same input, the same bytes.

    \b
    Examples:
      orchestrate render job.yaml
      orchestrate render job.yaml --cluster big -o rendered/
      orchestrate render job.yaml --cluster east --cluster west -o deploy/job
      orchestrate render job.yaml --cluster east --cluster west --check deploy/job
    """
    from orchestrator.cli.rendering import Wanted, render_each

    with faults_as_json(as_json):
        _check_use(clusters, output, check)
        each = render_each(Wanted(job, clusters, clusters_file, sets, target, policy_file))
        if check is not None:
            _check(check, each, job, as_json)
            return
        loaded, rendered = each[0]
        files = rendered.files if output is None else _write(output, each)
    if as_json:
        warnings = [warning.as_dict() for warning in loaded.warnings]
        about = {"name": rendered.name, "target": rendered.target, "warnings": warnings}
        print_json({**about, "files": files})
    else:
        _print(files, output)


def _check_use(clusters: tuple[str, ...], output: Path | None, check: Path | None) -> None:
    if output is not None and check is not None:
        raise UserError("-o writes and --check does not: give one of them")
    if len(clusters) > 1 and output is None and check is None:
        raise UserError("--cluster: several of them make overlays in a folder: give -o or --check")


def _write(folder: Path, each: Each) -> dict[str, str]:
    """Write what belongs into the folder, and return it."""
    from orchestrator.cli.committed import files_of, write

    files = files_of(each)
    write(folder, files)
    return files


def _check(folder: Path, each: Each, job: Path, as_json: bool) -> None:
    """Say how the folder differs, and leave with 1 if it does."""
    from orchestrator.cli.committed import changes, files_of, say_changes

    found = changes(folder, files_of(each))
    if as_json:
        print_json({"same": not found, "files": [change._asdict() for change in found]})
    else:
        say_changes(found, job, folder)
    if found:
        raise click.exceptions.Exit(1)


def _print(files: dict[str, str], output: Path | None) -> None:
    if output is not None:
        say("\n".join(str(output / name) for name in files))
    else:
        say_data(listing(files))


def listing(files: dict[str, str]) -> str:
    """All files one after another, each behind a line with its name."""
    return "".join(f"# ---- {name}\n{text}" for name, text in files.items())
