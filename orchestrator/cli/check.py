"""`orchestrate check`: mistakes of a training script on several ranks, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.common import json_option, print_json, say

if TYPE_CHECKING:
    from orchestrator.checking import Result
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
    Exit code 1 where something is found, 2 where a file is no Python, 0 otherwise. A script that
    does not train, or leaves the set-up of its ranks to others, is said to be not judged.

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
    results, unread = _look_at(scripts, ignore)
    if as_json:
        print_json(_as_json(results, unread))
    else:
        say("\n".join(_lines(results, len(scripts))))
    if unread and not as_json:
        raise FaultsError(unread)
    if unread:
        raise click.exceptions.Exit(FaultsError.exit_code)
    if any(result.findings for result in results.values()):
        raise click.exceptions.Exit(1)


def _as_json(results: dict[str, Result], unread: list[Fault]) -> dict[str, object]:
    """Everything that was seen; `faults` only where a file could not be read."""
    data: dict[str, object] = {
        "findings": [fault.as_dict() for result in results.values() for fault in result.findings],
        "not_judged": [
            {"file": file, "reason": result.unjudged}
            for file, result in results.items()
            if result.unjudged
        ],
        "left_out": [
            {"file": file, "rule": rule, "findings": count}
            for file, result in results.items()
            for rule, count in result.more.items()
        ],
    }
    if unread:
        data |= {"valid": False, "faults": [fault.as_dict() for fault in unread]}
    return data


def _lines(results: dict[str, Result], scripts: int) -> list[str]:
    """Findings, how many more there are, and the files of which nothing was judged."""
    found = [fault.render() for result in results.values() for fault in result.findings]
    for file, result in results.items():
        found += [f"{file}: {n} more of {rule}" for rule, n in result.more.items()]
    unjudged = [f"{f}: not judged: {r.unjudged}" for f, r in results.items() if r.unjudged]
    if not found and len(unjudged) < len(results):
        count = f" in {len(results) - len(unjudged)} of {scripts} files" if scripts > 1 else ""
        found = [f"nothing found{count}"]
    return found + unjudged


def _look_at(
    scripts: tuple[Path, ...], ignore: tuple[str, ...]
) -> tuple[dict[str, Result], list[Fault]]:
    """Return what was seen in each file, and the faults of what is no Python."""
    from orchestrator.checking import examine
    from orchestrator.errors import FaultsError

    results: dict[str, Result] = {}
    unread: list[Fault] = []
    for path in scripts:
        try:
            results[str(path)] = examine(_read(path), str(path), ignore)
        except FaultsError as error:
            unread += error.faults
    return results, unread


def _read(path: Path) -> str:
    """Return a script's text. Raises FaultsError where it is no plain file, or too large."""
    from orchestrator.errors import Fault, FaultsError, UserError
    from orchestrator.source import read_bytes
    from orchestrator.source.decode import MAX_BYTES

    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would keep us waiting
        fix = "give a script's file"
        raise FaultsError([Fault(str(path), None, "", "no plain file, but a pipe or device", fix)])
    try:
        content = read_bytes(path)
    except UserError as error:
        message = str(error).removeprefix(f"{path}: ")
        raise FaultsError([Fault(str(path), None, "", message)]) from None
    if len(content) > MAX_BYTES:
        fault = Fault(str(path), None, "", f"larger than {MAX_BYTES} bytes", "is it a script?")
        raise FaultsError([fault])
    return content.decode("utf-8-sig", "replace")
