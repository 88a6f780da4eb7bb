"""`orchestrate report`: one page about a run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.checkpoints import entered
from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile, say
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.report.files import Run


@click.command(name="report")
@click.argument("run", metavar="RUN")
@cluster_options
@click.option("--out", metavar="FILE", help="Where the page goes; `RUN-report.html` here where not "
              "given, `-` for standard output.")  # fmt: skip
@click.option("--reader-pod", is_flag=True,
              help="Kubernetes: where no pod of RUN runs, start a small one with its volumes, "
              "for this command alone.")  # fmt: skip
def command(
    run: str, cluster: str | None, clusters_file: str | None, out: str | None, reader_pod: bool
) -> None:
    """Write one HTML page about RUN: curves, where the time went, attempts, checkpoints, settings.

    The page needs nothing but itself: it loads nothing and runs no script. What looks like a secret
    is left out. A run that goes on, or that has not begun, has a page too.

    \b
    Examples:
      orchestrate report demo
      orchestrate report demo --out demo.html
      orchestrate report my-sweep/3
    """
    from orchestrator.report.page import report_page

    profile, _ = load_profile(cluster, clusters_file)
    found = read_named(run, profile, reader_pod=reader_pod)
    put(report_page(found), out, f"{found.name.replace('/', '-')}-report.html")


def read_named(run: str, profile: ClusterProfile, *, reader_pod: bool = False) -> Run:
    """All that is to be told of RUN. Raises UserError for a sweep, which is many runs."""
    from orchestrator.cli.history import read_run

    backend, handle = backend_of(profile), find_run(run, profile)
    above = replace(handle, run_dir=handle.run_dir.parent)
    with entered(backend, handle, reader_pod) as store:
        whole = backend.run_store(above) if "/" in handle.run else store
        return read_run(handle, store, profile, whole)


def put(text: str, out: str | None, name: str) -> None:
    """Write a page to `out`, or to `name` in the working folder, as a whole or not at all."""
    if out == "-":
        click.echo(text, nl=False)
        return
    path = Path(out or name)
    if path.is_dir():
        raise UserError(f"--out {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.parent}; make it, or name another")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, "utf-8")
    aside.replace(path)
    say(f"{path}: {len(text.encode()) / 1000:,.0f} kB")
