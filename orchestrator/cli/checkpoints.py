"""`orchestrate checkpoints`: what a run has saved, whether it is whole, and what may go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
)
from orchestrator.cli.table import aligned
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle
    from orchestrator.backends.runstore import RunStore
    from orchestrator.checkpoints import Checkpoint


@click.command(name="checkpoints")
@click.argument("run", metavar="RUN")
@cluster_options
@click.option("--verify", is_flag=True, help="Hash every file. Exit code: 1 if one is not whole.")
@click.option("--prune", is_flag=True, help="Remove what --keep does not keep.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N",
              help="With --prune: the newest N whole ones stay, and the best.")  # fmt: skip
@click.option("--reader-pod", is_flag=True,
              help="Kubernetes: where no pod of RUN runs, start a small one with its volumes, "
              "for this command alone.")  # fmt: skip
@json_option
def command(
    run: str,
    cluster: str | None,
    clusters_file: str | None,
    verify: bool,
    prune: bool,
    keep: int | None,
    reader_pod: bool,
    as_json: bool,
) -> None:
    """List the checkpoints of RUN, newest last: whole or broken, by the sizes of their files.

    --prune first hashes the newest ones, until one is whole: that one always stays, and the one
    with the lowest validation loss. It is refused unless the run has ended.

    \b
    Examples:
      orchestrate checkpoints demo
      orchestrate checkpoints demo --verify
      orchestrate checkpoints demo --prune --keep 2
      orchestrate checkpoints demo --reader-pod --verify
    """
    if prune != (keep is not None):
        raise click.UsageError("--prune and --keep N go together")
    with faults_as_json(as_json):
        profile, _ = load_profile(cluster, clusters_file)
        backend, handle = backend_of(profile), find_run(run, profile)
        with entered(backend, handle, reader_pod) as store:
            found, removed = _look(backend, handle, store, verify, keep)
    if as_json:
        print_json([_words(one, one in removed) for one in found])
    else:
        _show(handle.run, found, removed)
    if verify and any(one.fault for one in found):
        raise click.exceptions.Exit(1)


@contextmanager
def entered(backend: Backend, handle: Handle, reader_pod: bool) -> Iterator[RunStore]:
    """The run folder of a single run; with `reader_pod` through a pod, whatever it takes."""
    from orchestrator.backends.runstore import Enterable

    if handle.num_elements:
        names = f"{handle.run}/0 to {handle.run}/{handle.num_elements - 1}"
        raise UserError(f"{handle.run} is a sweep: give one of its elements, {names}")
    store = backend.run_store(handle)
    if not reader_pod:
        yield store
    elif isinstance(store, Enterable):
        with store.entered():
            yield store
    else:
        raise UserError(f"--reader-pod: {backend.name} reads the run folder without a pod")


def _look(
    backend: Backend, handle: Handle, store: RunStore, verify: bool, keep: int | None
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """All checkpoints, and those of them that were removed since `keep` does not keep them."""
    from orchestrator.backends import saved

    found = saved.list_saved(store)
    if verify:
        found = saved.all_verified(store, found)
    if keep is None or not found:
        return found, []
    _refuse_unless_ended(backend, handle)
    found = saved.newest_verified(store, found)
    return found, saved.prune(store, found, keep)


def _refuse_unless_ended(backend: Backend, handle: Handle) -> None:
    (status,) = backend.status([handle])
    if not status.state.is_final:
        raise UserError(
            f"{handle.run} is {status.state.name}: nothing is removed while a run may write or read"
            " its checkpoints. It removes old ones itself (checkpoint.keep in the job file);"
            f" otherwise stop it first: orchestrate cancel {handle.run}"
        )


def _show(run: str, found: Sequence[Checkpoint], removed: Sequence[Checkpoint]) -> None:
    if not found:
        say(f"{run} has no checkpoint yet")
        return
    head = ("STEP", "ATTEMPT", "FORMAT", "STRATEGY", "RANKS", "SIZE", "AGE", "VALIDATION", "STATE")
    now = time.time()
    say(aligned([head, *(_row(one, now, one in removed) for one in found)]))
    if removed:
        freed = size_words(sum(one.size_bytes for one in removed))
        say(f"removed {len(removed)} of {len(found)}, {freed}")


def _row(one: Checkpoint, now: float, is_removed: bool) -> tuple[str, ...]:
    from orchestrator.goodput import words_of

    facts = [one.facts.get(key) for key in ("format", "strategy", "world_size")]
    loss = one.validation_loss
    return (
        str(one.step),
        str(one.attempt),
        *("-" if fact is None else str(fact) for fact in facts),
        size_words(one.size_bytes),
        words_of(max(0.0, now - one.modified)),
        "-" if loss is None else f"{loss:.4f}",
        f"removed ({_state(one)})" if is_removed else _state(one),
    )


def _state(one: Checkpoint) -> str:
    if one.fault:
        return f"broken: {one.fault}"
    return "verified" if one.is_verified else "whole"


def _words(one: Checkpoint, is_removed: bool) -> dict[str, Any]:
    return {
        "name": one.name,
        "step": one.step,
        "attempt": one.attempt,
        "format": one.facts.get("format"),
        "strategy": one.facts.get("strategy"),
        "world_size": one.facts.get("world_size"),
        "size_bytes": one.size_bytes,
        "modified": one.modified,
        "validation_loss": one.validation_loss,
        "whole": not one.fault,
        "verified": one.is_verified,
        "fault": one.fault or None,
        "removed": is_removed,
    }


def size_words(size_bytes: int) -> str:
    """Bytes for people: `1.3 GB`, with 1000 bytes to the kB."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
