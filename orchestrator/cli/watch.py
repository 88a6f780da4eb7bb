"""`orchestrate watch`: a run's progress, until it ends."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import (
    backend_of,
    cluster_options,
    find_run,
    load_profile,
    say,
    shell_path,
)
from orchestrator.cli.follow import Follower, states
from orchestrator.cli.queueing import queueing_of
from orchestrator.errors import printable
from orchestrator.progress import Progress, describe_entry, is_step, summary

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from orchestrator.backends.base import Backend, Handle, Status


@click.command(name="watch")
@click.argument("run", metavar="RUN")
@cluster_options
def command(run: str, cluster: str | None, clusters_file: str | None) -> None:
    """Follow RUN: step, loss, tokens per second, time left. Ctrl-C leaves the run alone.

    A run that waits for its start for longer than timeouts.queue is cancelled.

    Exit code: 0 when the run is done, 1 when it ended otherwise, 130 at Ctrl-C.

    \b
    Example:
      orchestrate watch demo
    """
    profile, _ = load_profile(cluster, clusters_file)
    raise click.exceptions.Exit(watch_run(backend_of(profile), find_run(run, profile)))


def watch_run(backend: Backend, handle: Handle, *, only_new: bool = False) -> int:
    """Follow a run to its end and return the command's exit code.

    Args:
        only_new: say nothing of what its metrics hold already, as where a submit continues it.
    """
    follower = Follower(backend.run_store(handle), "metrics.jsonl")
    progress = Progress()
    for line in follower.lines() if only_new else ():
        progress.feed(line)
    screen = _Terminal(progress) if sys.stdout.isatty() else _Lines(progress)
    try:
        with screen:
            status = _follow(backend, handle, follower, screen)
    except KeyboardInterrupt:
        folder = shell_path(handle.run_dir)
        say(
            f"\n{handle.run} goes on. Follow it again: orchestrate watch {folder}; "
            f"stop it: orchestrate cancel {folder}"
        )
        return 130
    for text in summary(progress):
        say(text)
    head, *details = status.reason.splitlines() or [""]
    reason = f" ({head})" if head else ""
    say(f"{handle.run}: {status.state.name}{reason}; everything about it is in {handle.run_dir}")
    for detail in details:
        say(f"  | {detail}")
    return 0 if status.state.name == "DONE" else 1


def _follow(backend: Backend, handle: Handle, follower: Follower, screen: _Lines) -> Status:
    seen = ""
    queueing = queueing_of(backend, handle)
    # The state first: lines written before the run ended are then read below.
    for status in states(backend, handle):
        if queueing is not None and queueing.is_over(status, time.time()):
            screen.say(f"{handle.run} {queueing.words(time.time())}: it is cancelled")
            screen.say(backend.cancel(handle, now=True))
            queueing = None  # asked for once
        for line in follower.lines():
            screen.show(line)
        words = f"{handle.run}: {status.state.name}" + (
            f", {status.reason}" if status.reason else ""
        )
        if words != seen and not status.state.is_final:
            screen.say(words)
            seen = words
    return status


class _Lines:
    """Plain lines, for a file or a pipe."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

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
        say(text)


class _Terminal(_Lines):
    """A progress bar that stays at the bottom, events above it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
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
        if is_step(entry):
            self._advance()
        elif text := describe_entry(entry):
            self.say(text)

    def say(self, text: str) -> None:
        for line in text.splitlines():
            self.bar.console.print(printable(line), markup=False, highlight=False)

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
