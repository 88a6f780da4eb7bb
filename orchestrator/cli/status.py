"""`orchestrate status`: the state of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    faults_as_json,
    find_run,
    json_option,
    load_profile,
    print_json,
    say,
    status_words,
    statuses_of,
)
from orchestrator.cli.table import status_table, sweep_table

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Element, Handle, Status


@click.command(name="status")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@json_option
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, as_json: bool
) -> None:
    """Show the state of each RUN (a run's name, or its folder): one query for all of them.

    For a sweep also that of each element, whose name is SWEEP/NUMBER.

    \b
    Examples:
      orchestrate status demo
      orchestrate status demo other --json
      orchestrate status my-sweep my-sweep/3
    """
    with faults_as_json(as_json):
        profile, _ = load_profile(cluster, clusters_file)
        handles = [find_run(run, profile) for run in runs]
        rows = _rows(backend_of(profile), handles)
    if as_json:
        print_json([_words(*row) for row in rows])
        return
    say(status_table([status for status, _, _ in rows]))
    for status, _, elements in rows:
        if elements:
            say(f"\n{status.run}, {status.reason}\n{sweep_table(elements)}")


def _rows(backend: Backend, handles: list[Handle]) -> list[tuple[Status, Handle, list[Element]]]:
    """Status, handle and elements of each run; the elements' own tell the status of a sweep."""
    from orchestrator.backends.base import folded

    elements = [backend.elements(h) if h.num_elements else [] for h in handles]
    single = [h for h, own in zip(handles, elements, strict=True) if not own]
    statuses = iter(statuses_of(backend, single) if single else [])
    return [
        (folded(h.run, [e.status for e in own]) if own else next(statuses), h, own)
        for h, own in zip(handles, elements, strict=True)
    ]


def _words(status: Status, handle: Handle, elements: list[Element]) -> dict[str, Any]:
    words = status_words(status, handle)
    if handle.num_elements:
        words["elements"] = [_element_words(element) for element in elements]
    return words


def _element_words(element: Element) -> dict[str, Any]:
    own = {
        "element": element.number,
        "values": dict(element.values),
        "loss": element.loss,
        "best_validation_loss": element.best_validation_loss,
    }
    return status_words(element.status, element.handle) | own
