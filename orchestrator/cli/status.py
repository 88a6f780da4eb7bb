"""`orchestrate status`: the state of runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    faults_as_json,
    find_run,
    json_option,
    load_profile,
    os_error_words,
    print_json,
    say,
    status_words,
    statuses_of,
)
from orchestrator.cli.queueing import shown
from orchestrator.cli.table import status_table, sweep_table
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Element, Handle, Status
    from orchestrator.goodput import Goodput


@click.command(name="status")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@json_option
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, as_json: bool
) -> None:
    """Show the state of each RUN (a run's name, or its folder): one query for all of them.

    For a sweep also that of each element, whose name is SWEEP/NUMBER. For one run alone also where
    its time went, over all attempts.

    \b
    Examples:
      orchestrate status demo
      orchestrate status demo other --json
      orchestrate status my-sweep my-sweep/3
    """
    with faults_as_json(as_json):
        profile, _ = load_profile(cluster, clusters_file)
        handles = [find_run(run, profile) for run in runs]
        backend = backend_of(profile)
        rows = _rows(backend, handles)
        goodput = _goodput(backend, handles[0]) if len(handles) == 1 else None
    if as_json:
        more = {} if goodput is None else {"goodput": goodput.as_dict()}
        print_json([_words(*row) | more for row in rows])
        return
    say(status_table([status for status, _, _ in rows]))
    if goodput is not None:
        say(str(goodput))
    for status, _, elements in rows:
        if elements:
            say(f"\n{status.run}, {status.reason}\n{sweep_table(elements)}")


def _rows(backend: Backend, handles: list[Handle]) -> list[tuple[Status, Handle, list[Element]]]:
    """Status, handle and elements of each run; the elements' own tell the status of a sweep."""
    from orchestrator.backends.base import folded

    elements = [backend.elements(h) if h.num_elements else [] for h in handles]
    single = [h for h, own in zip(handles, elements, strict=True) if not own]
    found = statuses_of(backend, single) if single else []
    statuses = iter(map(partial(_with_wait, backend), single, found))
    return [
        (folded(h.run, [e.status for e in own]) if own else next(statuses), h, own)
        for h, own in zip(handles, elements, strict=True)
    ]


def _with_wait(backend: Backend, handle: Handle, status: Status) -> Status:
    """The status, and how long the run has waited where that is limited."""
    wait = shown(backend, handle, status)
    reason = "; ".join(part for part in (status.reason, wait) if part)
    return replace(status, reason=reason)


def _goodput(backend: Backend, handle: Handle) -> Goodput | None:
    """Where the time of a single run went; None where it has no ledger that can be read."""
    from orchestrator.cli.follow import Lines
    from orchestrator.contract import LEDGER_FILE
    from orchestrator.goodput import read_goodput

    if handle.num_elements:
        return None
    try:
        return read_goodput(Lines(backend.run_store(handle), LEDGER_FILE))
    except (OSError, BackendError) as error:  # the state is told all the same
        words = os_error_words(error) if isinstance(error, OSError) else str(error)
        say(f"warning: {words}", err=True)
        return None


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
