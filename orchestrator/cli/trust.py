"""`orchestrate trust`: let a clusters.yaml that lies in a working folder be used there."""

from __future__ import annotations

import os
from pathlib import Path

import click

from orchestrator.cli.common import say


@click.command(name="trust")
@click.argument(
    "path", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE"
)
def command(path: Path) -> None:
    """Trust the cluster profiles in FILE, as they are now. A change of the file ends the trust.

    It can carry commands and hosts, so one that merely lies in the working folder is not used.

    \b
    Example:
      orchestrate trust clusters.yaml
    """
    from orchestrator.trust import trust

    say(f"trusted: {path} (noted in {trust(path, os.environ)})")
