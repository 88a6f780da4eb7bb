"""`orchestrate cancel`: stop runs, with a checkpoint or at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    find_run,
    load_profile,
    os_error_words,
    say,
)
from orchestrator.errors import OrchestrateError

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle

Answer = tuple["Handle", "str | Exception"]


@click.command(name="cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@click.option("--now", is_flag=True, help="Kill at once; steps since the last checkpoint are lost.")
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, now: bool
) -> None:
    """Stop each RUN after a checkpoint at the next step boundary. Submitting it again continues it.

    All are asked at once, then waited for. Exit code: 1 if one did not stop.

    \b
    Examples:
      orchestrate cancel demo
      orchestrate cancel demo --now
    """
    profile, _ = load_profile(cluster, clusters_file)
    backend = backend_of(profile)
    handles = {handle.run_dir: handle for handle in (find_run(run, profile) for run in runs)}
    try:
        if not _report(_cancel_all(backend, list(handles.values()), now)):
            raise click.exceptions.Exit(1)
    except KeyboardInterrupt:
        names = " ".join(handle.run for handle in handles.values())
        say(f"\nThe stop was asked for and is not taken back: orchestrate status {names}")
        raise


def _cancel_all(backend: Backend, handles: Sequence[Handle], now: bool) -> Iterator[Answer]:
    """Ask all at once; yield each one's answer when it comes."""
    answers: SimpleQueue[Answer] = SimpleQueue()

    def ask(handle: Handle) -> None:
        try:
            answers.put((handle, backend.cancel(handle, now=now)))
        except Exception as error:  # raised again by whoever waits for the answer
            answers.put((handle, error))

    for handle in handles:
        # Daemons: after Ctrl-C nobody waits for them.
        threading.Thread(target=ask, args=(handle,), daemon=True).start()
    for _ in handles:
        yield answers.get()


def _report(answers: Iterator[Answer]) -> bool:
    """Print each answer; return whether all have stopped."""
    all_stopped = True
    for handle, answer in answers:
        if isinstance(answer, str):
            say(answer)
            continue
        if not isinstance(answer, (OrchestrateError, OSError)):
            raise answer
        words = os_error_words(answer) if isinstance(answer, OSError) else str(answer)
        say(words if handle.run in words else f"{handle.run}: {words}", err=True)
        all_stopped = False
    return all_stopped
