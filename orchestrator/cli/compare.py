"""`orchestrate compare`: several runs on one page."""

from __future__ import annotations

import click

from orchestrator.cli.common import cluster_options, load_profile
from orchestrator.cli.report import force_option, put, read_named
from orchestrator.errors import UserError

MAX_RUNS = 40


@click.command(name="compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@click.option("--out", metavar="FILE", help="Where it goes, `-` for standard output; where not "
              "given `compare.html` here, and --csv to standard output.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="The figures as CSV in place of the page.")
@force_option
def command(
    runs: tuple[str, ...],
    cluster: str | None,
    clusters_file: str | None,
    out: str | None,
    as_csv: bool,
    force: bool,
) -> None:
    """Put RUNs together on one HTML page: curves by step, tokens and time, figures, differences.

    The differences are the keys of their job files, with defaults, and what the trainer was told
    beyond them, as by --set.

    \b
    Examples:
      orchestrate compare demo other
      orchestrate compare my-sweep/0 my-sweep/1 my-sweep/2 --out sweep.html
      orchestrate compare demo other --csv
    """
    from orchestrator.report import compare, page

    if len(runs) > MAX_RUNS:
        raise UserError(f"{len(runs)} runs: at most {MAX_RUNS} can be told apart on one page")
    profile, _ = load_profile(cluster, clusters_file)
    found = compare.apart([read_named(run, profile) for run in runs])
    if as_csv:
        put(compare.as_csv(found), "-" if out is None else out, force=force)
    else:
        put(page.compare_page(found), "compare.html" if out is None else out, force=force)
