"""`orchestrate check`: mistakes of a training script on several ranks, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import faults_as_json, json_option, print_json, say

if TYPE_CHECKING:
    from orchestrator.errors import Fault


@click.command(name="check")
@click.argument(
    "scripts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SCRIPT.PY..."
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave out this rule. Repeatable.")
@json_option
def command(scripts: tuple[Path, ...], ignore: tuple[str, ...], as_json: bool) -> None:
    """Look for what goes wrong in a PyTorch training script once several ranks run it.

    Nothing of the script is run. One that trains in one process is looked at as if several ran
    it. docs/check.md has the rules; the comment `# check: ok RULE` on a line leaves one out there.
    Exit code 1 where something is found, 2 where a file is no Python.

    \b
    Examples:
      orchestrate check train.py
      orchestrate check train.py --ignore gpu-0
    """
    from orchestrator.checking import RULES
    from orchestrator.errors import FaultsError, UserError

    known = [rule.name for rule in RULES]
    if unknown := [name for name in ignore if name not in known]:
        raise UserError(f"--ignore {unknown[0]}: no such rule; there are {', '.join(known)}")
    with faults_as_json(as_json):
        found, unread = _look_at(scripts, ignore)
        if found and not as_json:
            say("\n".join(fault.render() for fault in found))
        if unread:
            raise FaultsError(unread)
    if as_json:
        print_json({"findings": [fault.as_dict() for fault in found]})
    elif not found:
        say("nothing found")
    if found:
        raise click.exceptions.Exit(1)


def _look_at(scripts: tuple[Path, ...], ignore: tuple[str, ...]) -> tuple[list[Fault], list[Fault]]:
    """Return the findings, and the faults of what is no Python."""
    from orchestrator.checking import check
    from orchestrator.errors import Fault, FaultsError
    from orchestrator.source import read_bytes
    from orchestrator.source.decode import MAX_BYTES

    found: list[Fault] = []
    unread: list[Fault] = []
    for path in scripts:
        content = read_bytes(path)
        if len(content) > MAX_BYTES:
            unread.append(Fault(str(path), None, "", f"larger than {MAX_BYTES} bytes"))
            continue
        try:
            found += check(content.decode("utf-8-sig", "replace"), str(path), ignore)
        except FaultsError as error:
            unread += error.faults
    return found, unread
