"""`orchestrate check`: mistakes of a training script on several ranks, without running it."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.common import faults_as_json, json_option, print_json, say


@click.command(name="check")
@click.argument(
    "scripts", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SCRIPT.PY..."
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave out this rule. Repeatable.")
@json_option
def command(scripts: tuple[Path, ...], ignore: tuple[str, ...], as_json: bool) -> None:
    """Look for what goes wrong in a PyTorch training script once several ranks run it.

    Nothing of the script is run. A line with the comment `# check: RULE` is left out for that rule.
    Exit code 1 where something is found.

    \b
    Examples:
      orchestrate check train.py
      orchestrate check train.py --ignore gpu-0
    """
    from orchestrator.checking import RULES, check
    from orchestrator.errors import UserError
    from orchestrator.source import read_bytes

    known = [rule.name for rule in RULES]
    if unknown := [name for name in ignore if name not in known]:
        raise UserError(f"--ignore {unknown[0]}: no such rule; there are {', '.join(known)}")
    with faults_as_json(as_json):
        texts = [(read_bytes(path).decode("utf-8", "replace"), str(path)) for path in scripts]
        found = [fault for text, file in texts for fault in check(text, file, ignore)]
    if as_json:
        print_json({"findings": [fault.as_dict() for fault in found]})
    else:
        say("\n".join(fault.render() for fault in found) if found else "nothing found")
    if found:
        raise click.exceptions.Exit(1)
