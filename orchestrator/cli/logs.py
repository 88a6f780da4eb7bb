"""`orchestrate logs`: what the ranks printed, each line behind the rank that printed it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile, say
from orchestrator.cli.follow import Follower, states
from orchestrator.errors import UserError, printable

if TYPE_CHECKING:
    from orchestrator.backends.base import Backend, Handle
    from orchestrator.backends.runstore import LogLine, Logs, RunStore


@click.command(name="logs")
@click.argument("run", metavar="RUN")
@cluster_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, metavar="RANK",
              help="Only this rank. Repeatable.")  # fmt: skip
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="An earlier attempt.")
def command(
    run: str,
    cluster: str | None,
    clusters_file: str | None,
    follow: bool,
    ranks: tuple[int, ...],
    attempt: int | None,
) -> None:
    """Print the output of all ranks of RUN's newest attempt, or follow it over attempts with -f.

    Into a pipe or a file the bytes come as they are; on a terminal `?` stands for what could steer
    it.

    \b
    Examples:
      orchestrate logs demo -f
      orchestrate logs demo --rank 0 --attempt 1
    """
    profile, _ = load_profile(cluster, clusters_file)
    backend = backend_of(profile)
    handle = find_run(run, profile)
    if handle.num_elements:
        last = handle.num_elements - 1
        raise UserError(f"{run} is a sweep: give one of its elements, {run}/0 to {run}/{last}")
    printer = _printer(backend.run_store(handle), set(ranks), attempt, follow=follow)
    try:
        known = not follow or _follow(printer, backend, handle)
        printer.print_rest()
    except KeyboardInterrupt:
        if follow:
            say(f"\n{handle.run} goes on. Follow it again: orchestrate logs {run} -f", err=True)
        raise
    if not known:
        raise click.exceptions.Exit(1)
    if not printer.has_any and not follow:
        raise UserError(_nothing(run, ranks, attempt))


def _nothing(run: str, ranks: tuple[int, ...], attempt: int | None) -> str:
    which = f"attempt {attempt}" if attempt else "the newest attempt"
    of_ranks = f" of rank {', '.join(map(str, ranks))}" if ranks else ""
    return (
        f"{run}: no log{of_ranks} in {which}. `orchestrate status {run}` shows the attempts; "
        "a rank writes its log from the moment that it starts."
    )


def _printer(
    store: RunStore, ranks: set[int], attempt: int | None, *, follow: bool
) -> _Printer | _MergedPrinter:
    """What prints the run's logs: those of its ranks, or all that its nodes say."""
    from orchestrator.backends.runstore import WithLogs

    if attempt is None and isinstance(store, WithLogs):
        return _MergedPrinter(store.merged_logs(), ranks, follow=follow)
    return _Printer(store, ranks, attempt, from_newest=attempt is None)


def _follow(printer: _Printer | _MergedPrinter, backend: Backend, handle: Handle) -> bool:
    """Print until the run has ended; return False if its state cannot be told."""
    lost = ""
    for status in states(backend, handle):
        printer.print_new()
        words = f"{handle.run}: {status.state.name} ({status.reason}); not followed any more"
        lost = "" if status.state.is_final else words
    if lost:
        say(lost, err=True)
    return not lost


class _MergedPrinter:
    """Prints the lines of all nodes as they come."""

    def __init__(self, logs: Logs, ranks: set[int], *, follow: bool) -> None:
        self.logs, self.ranks, self.follow = logs, ranks, follow
        self.has_any = False

    def print_new(self) -> None:
        self._print(self.logs.new())

    def print_rest(self) -> None:
        self._print(self.logs.rest() if self.follow else self.logs.all())

    def _print(self, lines: Iterable[LogLine]) -> None:
        raw = not sys.stdout.isatty()
        for line in lines:
            if not self.ranks or line.rank in self.ranks:
                self.has_any = True
                _echo(line.prefix, line.text, raw=raw)


def _echo(prefix: str, line: bytes, *, raw: bool) -> None:
    if raw:
        click.echo(prefix.encode() + line)
    else:
        click.echo(prefix + printable(line.decode(errors="replace").rstrip("\r")))


class _Printer:
    """Prints the new lines of each rank's log, in the order of attempts and ranks."""

    def __init__(
        self, store: RunStore, ranks: set[int], attempt: int | None, *, from_newest: bool
    ) -> None:
        self.store = store
        self.ranks = ranks
        self.attempt = attempt
        self.first = max(self._attempts(), default=1) if from_newest else 1
        self.followers: dict[tuple[int, int], Follower] = {}
        self.raw = not sys.stdout.isatty()

    def print_new(self) -> None:
        self._discover()
        for (attempt, rank), follower in sorted(self.followers.items()):
            self._print(attempt, rank, follower.lines())

    def print_rest(self) -> None:
        self._discover()
        for (attempt, rank), follower in sorted(self.followers.items()):
            self._print(attempt, rank, follower.last())

    def _print(self, attempt: int, rank: int, lines: Iterable[bytes]) -> None:
        prefix = f"[{attempt}] rank {rank} | "
        for line in lines:
            _echo(prefix, line, raw=self.raw)

    @property
    def has_any(self) -> bool:
        return bool(self.followers)

    def _attempts(self) -> list[int]:
        names = self.store.list("attempts")
        return [int(name) for name in names if re.fullmatch("[0-9]+", name)]

    def _discover(self) -> None:
        wanted = (
            [self.attempt] if self.attempt else [n for n in self._attempts() if n >= self.first]
        )
        for attempt in wanted:
            for name in self.store.list(f"attempts/{attempt}/logs"):
                match = re.fullmatch(r"rank-(\d+)\.log", name)
                if match and (not self.ranks or int(match[1]) in self.ranks):
                    path = f"attempts/{attempt}/logs/{name}"
                    key = (attempt, int(match[1]))
                    self.followers.setdefault(key, Follower(self.store, path))
