"""`orchestrate wait`: until runs have ended, for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator import units
from orchestrator.cli.common import backend_of, cluster_options, find_run, load_profile, say

if TYPE_CHECKING:
    from orchestrator.backends.base import Status


def _timeout_s(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else units.parse_duration(text)
    except units.UnitError as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="wait")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@cluster_options
@click.option("--timeout", "timeout_s", metavar="TIME", callback=_timeout_s,
              help="Give up after this time, such as 90m or 2h; the runs go on.")  # fmt: skip
def command(
    runs: tuple[str, ...], cluster: str | None, clusters_file: str | None, timeout_s: int | None
) -> None:
    """Wait until each RUN has ended; print a line for each change of a state.

    Exit code: 0 when all are done, 1 when one ended otherwise or the time is over, 130 at Ctrl-C.

    \b
    Examples:
      orchestrate wait demo
      orchestrate wait demo other --timeout 2h && ./evaluate.sh
    """
    from orchestrator.backends.waiting import wait

    profile, _ = load_profile(cluster, clusters_file)
    handles = {handle.run_dir: handle for handle in (find_run(run, profile) for run in runs)}
    try:
        statuses = wait(
            backend_of(profile), list(handles.values()), timeout_s=timeout_s, on_change=_tell
        )
    except KeyboardInterrupt:
        say("\nNothing was stopped. Wait again with the same command.", err=True)
        raise
    if any(status.state.name != "DONE" for status in statuses):
        raise click.exceptions.Exit(1)


def _tell(status: Status) -> None:
    attempt = f", attempt {status.attempt}" if status.attempt else ""
    reason = (status.reason.splitlines() or [""])[0]
    say(f"{status.run}: {status.state.name}{attempt}" + (f" ({reason})" if reason else ""))
