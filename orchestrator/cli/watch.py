"""`orchestrate watch`: a run's progress, until it ends."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile
from orchestrator.cli.follow import Follower
from orchestrator.progress import Progress, describe_entry, summary

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from orchestrator.backends.base import Backend, Handle, Status

POLL_S = 0.3


@click.command(name="watch")
@click.argument("run", metavar="RUN")
@cluster_options
def command(run: str, cluster: str | None, clusters_file: str | None) -> None:
    """Follow RUN: step, loss, tokens per second, time left. Ctrl-C leaves the run alone.

    Exit code: 0 when the run is done, 1 when it ended otherwise, 130 at Ctrl-C.

    \b
    Example:
      orchestrate watch demo
    """
    profile, _ = load_profile(cluster, clusters_file)
    raise click.exceptions.Exit(watch_run(backend_of(profile), find_run(run, profile)))


def watch_run(backend: Backend, handle: Handle) -> int:
    """Follow a run to its end and return the command's exit code."""
    screen = _Terminal() if sys.stdout.isatty() else _Lines()
    try:
        with screen:
            status = _follow(backend, handle, screen)
    except KeyboardInterrupt:
        click.echo(
            f"\n{handle.run} goes on. Follow it again: orchestrate watch {handle.run_dir}; "
            f"stop it: orchestrate cancel {handle.run_dir}"
        )
        return 130
    for line in summary(screen.progress):
        click.echo(line)
    reason = f" ({status.reason})" if status.reason else ""
    click.echo(
        f"{handle.run}: {status.state.name}{reason}; everything about it is in {handle.run_dir}"
    )
    return 0 if status.state.name == "DONE" else 1


def _follow(backend: Backend, handle: Handle, screen: _Lines) -> Status:
    follower = Follower(backend.run_store(handle), "metrics.jsonl")
    seen = ""
    while True:
        # The state first: lines written before the run ended are then read below.
        status = backend.status([handle])[0]
        for line in follower.lines():
            screen.show(line)
        words = f"{handle.run}: {status.state.name}" + (
            f", {status.reason}" if status.reason else ""
        )
        if status.state.is_final:
            return status
        if words != seen:
            screen.say(words)
            seen = words
        time.sleep(POLL_S)


class _Lines:
    """Plain lines, for a file or a pipe."""

    def __init__(self) -> None:
        self.progress = Progress()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def show(self, line: bytes) -> None:
        entry = self.progress.feed(line)
        text = describe_entry(entry) if entry else None
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        click.echo(text)


class _Terminal(_Lines):
    """A progress bar that stays at the bottom, events above it."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = _bar()
        self.task = self.bar.add_task("starting", total=None, loss="", speed="")

    def __enter__(self) -> _Terminal:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def show(self, line: bytes) -> None:
        entry = self.progress.feed(line)
        if entry is None:
            return
        if entry.get("event", "step") == "step":
            self._advance()
        elif text := describe_entry(entry):
            self.say(text)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def _advance(self) -> None:
        progress = self.progress
        left = progress.time_left_s
        self.bar.update(
            self.task,
            completed=progress.step,
            total=progress.steps,
            description=f"attempt {progress.attempt}",
            loss=f"loss {progress.loss:.4f}" if progress.loss is not None else "",
            speed=f"{progress.tokens_per_s or 0:,.0f} tokens/s"
            + (f", {left:.0f} s left" if left is not None else ""),
        )


def _bar() -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
    )
