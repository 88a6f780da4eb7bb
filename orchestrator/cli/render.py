"""`orchestrate render`: the files that a submit would send."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.common import (
    cluster_options,
    faults_as_json,
    job_argument,
    json_option,
    load_job,
    policy_option,
    print_json,
    say,
    say_cluster,
    say_data,
    set_option,
)
from orchestrator.errors import FaultsError, UserError


@click.command(name="render")
@job_argument
@cluster_options
@click.option("--target", metavar="TARGET", help="Render for this target, by its neutral profile.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Write the files into DIR instead of printing them.")  # fmt: skip
@set_option
@policy_option
@json_option
def command(
    job: Path,
    cluster: str | None,
    clusters_file: str | None,
    target: str | None,
    output: Path | None,
    sets: tuple[str, ...],
    policy_file: str | None,
    as_json: bool,
) -> None:
    """Print or write the files that JOB.YAML becomes: the same input, the same bytes.

    \b
    Examples:
      orchestrate render job.yaml
      orchestrate render job.yaml --cluster big -o rendered/
    """
    from orchestrator.render import render

    with faults_as_json(as_json):
        loaded = load_job(job, cluster, clusters_file, sets, target=target, policy_file=policy_file)
        if loaded.resolved.variables:
            raise FaultsError(loaded.resolved.variables)
        rendered = render(loaded.plan())
        if output is not None:
            _write(output, rendered.files)
    say(f"# {say_cluster(loaded.profile, loaded.source)}", err=True)
    if as_json:
        print_json({"name": rendered.name, "target": rendered.target, "files": rendered.files})
    elif output is not None:
        say("\n".join(str(output / name) for name in rendered.files))
    else:
        say_data(listing(rendered.files))


def listing(files: dict[str, str]) -> str:
    """All files one after another, each behind a line with its name."""
    return "".join(f"# ---- {name}\n{text}" for name, text in files.items())


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write ({error.strerror}). Give -o a folder that you may write to."
        ) from None
