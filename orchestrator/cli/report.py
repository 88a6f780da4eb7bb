"""`orchestrate report`: one page about a run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.backends.runstore import at_once
from orchestrator.cli.checkpoints import entered
from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile, say
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.profiles import ClusterProfile
    from orchestrator.report.files import Run


force_option = click.option("--force", is_flag=True, help="Write over a file that is no earlier "
                            "page or table of this command.")  # fmt: skip
# How a page begins, and a table.
OURS = (b'<!DOCTYPE html>\n<html lang="en" data-by="orchestrate">', b"run,state,step,steps,loss,")


@click.command(name="report")
@click.argument("run", metavar="RUN")
@cluster_options
@click.option("--out", metavar="FILE", help="Where the page goes; `RUN-report.html` here where not "
              "given, `-` for standard output.")  # fmt: skip
@click.option("--reader-pod", is_flag=True,
              help="Kubernetes: where no pod of RUN runs, start a small one with its volumes, "
              "for this command alone.")  # fmt: skip
@force_option
def command(
    run: str,
    cluster: str | None,
    clusters_file: str | None,
    out: str | None,
    reader_pod: bool,
    force: bool,
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
    name = f"{found.name.replace('/', '-')}-report.html"
    put(report_page(found), out if out is not None else name, force=force)


def read_named(run: str, profile: ClusterProfile, *, reader_pod: bool = False) -> Run:
    """All that is to be told of RUN. Raises UserError for a sweep, which is many runs."""
    from orchestrator.cli.history import read_run

    backend, handle = backend_of(profile), find_run(run, profile)
    above = replace(handle, run_dir=handle.run_dir.parent)
    with entered(backend, handle, reader_pod) as store:
        whole = backend.run_store(above) if "/" in handle.run else store
        return read_run(handle, store, profile, whole)


def put(text: str, out: str, *, force: bool = False) -> None:
    """Write a page to the file `out`, as a whole or not at all, or to standard output for `-`.

    Raises UserError if `out` can be no file, or is one that this did not write; not with `force`.
    """
    if out == "-":
        click.echo(text, nl=False)
        return
    path = _checked(out, force=force)
    aside = path.with_name(f".orchestrate.{os.getpid()}")
    try:
        aside.write_text(text, "utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    say(f"{out}: {len(text.encode()) / 1000:,.0f} kB")


def _checked(out: str, *, force: bool) -> Path:
    """The file that `out` names, behind links, if it may be written."""
    if not out:
        raise UserError("--out: it is empty; name a file, or - for standard output")
    path = Path(out)
    if path.is_dir():
        raise UserError(f"--out {out}: it is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(
            f"--out {out}: it is a device, pipe or socket; name a file, or - for standard output"
        )
    if path.is_symlink() and not path.exists():
        raise UserError(f"--out {out}: it is a link that leads nowhere; name a file")
    if not path.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {path.parent}; make it, or name another")
    if path.exists() and not force and not _is_ours(path):
        raise UserError(
            f"--out {out}: it is there, and no page or table of `orchestrate report` or `compare`; "
            "name another file, or give --force to write over it"
        )
    return path.resolve()


def _is_ours(path: Path) -> bool:
    with open(path, "rb", opener=at_once) as file:
        begin = file.read(len(OURS[0]))
    return not begin or begin.startswith(OURS)
