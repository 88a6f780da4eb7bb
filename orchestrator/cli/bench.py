"""`orchestrate bench`: short runs of one job under several settings, measured beside the plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator import units
from orchestrator.cli.common import (
    cluster_options,
    job_argument,
    json_option,
    load_profile,
    print_json,
    runs_root,
    say,
    set_option,
)
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.bench.book import Book, Row
    from orchestrator.bench.cells import Cell
    from orchestrator.cli.benching import Asked


def _numbers(_context: click.Context, option: click.Parameter, text: str | None) -> list[int]:
    """Whole numbers from 1, with commas between them."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**9 for part in parts):
        raise click.BadParameter(f"{text!r} is no list of whole numbers from 1, such as 1,2,4")
    return [int(part) for part in parts]


def _texts(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _timeout_s(_context: click.Context, _option: click.Parameter, text: str) -> float:
    try:
        return units.parse_duration(text)
    except units.UnitError as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="bench")
@job_argument
@cluster_options
@click.option("--strategies", metavar="NAMES", callback=_texts,
              help="Strategies with commas between them; without it the job's own.")  # fmt: skip
@click.option("--nodes", metavar="NUMBERS", callback=_numbers,
              help="Numbers of nodes; without it the job's own.")  # fmt: skip
@click.option("--micro-batch", "micros", metavar="NUMBERS", callback=_numbers,
              help="Sizes of a rank's micro-batch; without it the job's own.")  # fmt: skip
@click.option("--layers", metavar="NUMBERS", callback=_numbers,
              help="Numbers of blocks of the bundled GPT; without it the job's own.")  # fmt: skip
@click.option("--steps", type=click.IntRange(8), default=20, show_default=True,
              help="Steps of each run; the first five are not counted.")  # fmt: skip
@click.option("--array", is_flag=True,
              help="One sweep for each number of nodes, with a cell for each element, in place of "
              "one run after another.")  # fmt: skip
@click.option("--timeout", "timeout_s", metavar="TIME", default="1h", show_default=True,
              callback=_timeout_s, help="Longest wait for the end of a run, or of an array; it is "
              "cancelled then.")  # fmt: skip
@click.option("--retry", is_flag=True, help="Run again what has failed.")
@click.option(
    "--calibrate",
    is_flag=True,
    help="Print the `hardware` lines for the cluster's profile that the runs lead to; with --json "
    "or --csv on stderr.",
)
@click.option("-o", "--output", "folder", metavar="DIR", type=click.Path(path_type=Path),
              help="Folder of the results; without it NAME-bench in the runs' folder.")  # fmt: skip
@click.option("--plot", "plot_file", type=click.Path(path_type=Path, dir_okay=False),
              metavar="FILE", help="Draw what was measured and planned (.png, .svg).")  # fmt: skip
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@click.option("--markdown", "form", flag_value="markdown", default=True,
              help="Print a Markdown table (the default).")  # fmt: skip
@json_option
@set_option
def command(
    job: Path,
    cluster: str | None,
    clusters_file: str | None,
    strategies: list[str],
    nodes: list[int],
    micros: list[int],
    layers: list[int],
    steps: int,
    array: bool,
    timeout_s: float,
    retry: bool,
    calibrate: bool,
    folder: Path | None,
    plot_file: Path | None,
    form: str,
    as_json: bool,
    sets: tuple[str, ...],
) -> None:
    """Run JOB.YAML for a few steps under each combination, and compare with the plan.

    Each cell is a run of its own, NAME-STRATEGY-nNODES-mMICRO, on whatever the cluster is. Measured
    are the highest memory of all ranks, the median step, and the bytes of the collectives that ran;
    how far the plan is off stands in brackets. A cell that fails is a row with its reason. The same
    command again runs what is not done yet; Ctrl-C and SIGTERM stop the cell that runs.

    \b
    Examples:
      orchestrate bench job.yaml --strategies ddp,full_shard --micro-batch 4,8
      orchestrate bench job.yaml --cluster big --nodes 1,2 --array --csv
      orchestrate bench job.yaml --strategies ddp,full_shard --layers 2,4 --calibrate
    """
    from orchestrator.cli.benching import Asked, run_missing, wanted_cells

    asked = Asked(job, cluster, clusters_file, sets, steps)
    base = asked.base()
    asked = asked.on(base)
    cells = wanted_cells(base.resolved.spec, strategies, nodes, micros, layers)
    book = _book(asked, folder, base.resolved.spec.name, cells)
    run_missing(asked, base, book, cells, array=array, retry=retry, timeout_s=timeout_s)
    rows = [book.rows[cell] for cell in cells if cell in book.rows]
    _keep(book, rows)
    if plot_file is not None:
        from orchestrator.cli.bench_plot import plot

        plot(rows, plot_file)
    _print(rows, "json" if as_json else form)
    if calibrate:
        _calibrate(asked, book, rows, beside=as_json or form == "csv")
    if any(row.state != "DONE" for row in rows):
        raise click.exceptions.Exit(1)


def _book(asked: Asked, folder: Path | None, name: str, cells: list[Cell]) -> Book:
    from orchestrator.bench.book import Book

    profile, _ = load_profile(asked.cluster, asked.clusters_file)
    here = profile.ssh is None and not profile.is_kubernetes
    usual = (runs_root(profile) if here else Path(".")) / f"{name}-bench"
    words = {
        "job": str(asked.job.absolute()), "name": name, "cluster": profile.name,
        "set": list(asked.sets), "steps": asked.steps, "cells": [cell.label for cell in cells],
    }  # fmt: skip
    return Book.open(folder or usual, words)


def _keep(book: Book, rows: list[Row]) -> None:
    from orchestrator.bench.tables import csv_text, markdown

    book.write("bench.md", markdown(rows))
    book.write("bench.csv", csv_text(rows))
    say(f"kept in {book.folder}", err=True)


def _print(rows: list[Row], form: str) -> None:
    from orchestrator.bench.tables import csv_text, markdown

    if form == "json":
        print_json([row.as_dict() for row in rows])
    else:
        say((csv_text if form == "csv" else markdown)(rows).removesuffix("\n"))


def _calibrate(asked: Asked, book: Book, rows: list[Row], beside: bool) -> None:
    """Print the lines and keep them; on stderr beside what programs read."""
    from orchestrator.bench.calibrate import fit
    from orchestrator.cli.benching import observations

    seen = observations(asked, rows)
    if not seen:
        raise UserError("--calibrate: no cell has ended well, so nothing was measured")
    # Simulated nodes are processes of one machine.
    profile, _ = load_profile(asked.cluster, asked.clusters_file)
    found = fit(seen, one_link=profile.target == "local")
    errors = sorted(abs(error) for error in found.errors)
    middle = errors[len(errors) // 2]
    text = (
        f"# from {len(seen)} runs; their steps by these figures: {middle:.0%} off at the median, "
        f"{errors[-1]:.0%} at most\n{found.yaml}"
    )
    book.write("hardware.yaml", text)
    say(text.removesuffix("\n"), err=beside)
