"""A static look at a training script for the mistakes that a change to several ranks makes.

Nothing of the script is run or imported: rules read its syntax tree.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from orchestrator.checking import collectives, devices, loading, models, saving, stopping
from orchestrator.checking.kind import unjudged
from orchestrator.checking.script import Script, read_script
from orchestrator.errors import Fault, FaultsError, Position

MAX_FINDINGS_EACH = 20  # of one rule in one script


class Rule(NamedTuple):
    """Something that goes wrong on several ranks.

    Args:
        name: for `--ignore` and for a comment in the script.
        reason: what happens.
        fix: what to do.
        find: yields the places in a script.
    """

    name: str
    reason: str
    fix: str
    find: Callable[[Script], Iterator[ast.AST]]


class Result(NamedTuple):
    """What was seen in a script.

    Args:
        findings: by place.
        unjudged: why nothing was looked for; "" where it was.
        more: findings that are left out, above MAX_FINDINGS_EACH of one rule: their number.
    """

    findings: list[Fault]
    unjudged: str
    more: dict[str, int]


RULES: tuple[Rule, ...] = tuple(
    Rule(name, reason, fix, find)
    for part in (loading, saving, models, devices, collectives, stopping)
    for name, (reason, fix, find) in part.RULES.items()
)


def check(text: str, file: str, ignore: Sequence[str] = ()) -> list[Fault]:
    """Return the findings of `examine`."""
    return examine(text, file, ignore).findings


def examine(text: str, file: str, ignore: Sequence[str] = ()) -> Result:
    """Return what a script does that goes wrong on several ranks.

    A script that trains in one process is looked at as if several ran it. One that does neither
    is not judged.

    Args:
        text: of the script.
        file: its name, for the findings.
        ignore: names of rules to leave out. A line with the comment `# check: ok NAME` leaves out
            that rule for itself.

    Raises:
        FaultsError: the text is no Python, or nested beyond what Python's own parser goes through.
    """
    script = read_script(text, file)
    try:
        return _examine(script, ignore)
    except RecursionError:
        fault = Fault(file, None, "", "nested too deeply to be looked at", "split its expressions")
        raise FaultsError([fault]) from None


def _examine(script: Script, ignore: Sequence[str]) -> Result:
    if why := unjudged(script):
        return Result([], why, {})
    found: list[Fault] = []
    more: dict[str, int] = {}
    for rule in RULES:
        if rule.name not in ignore:
            faults = sorted(_findings(script, rule), key=_place)
            found += faults[:MAX_FINDINGS_EACH]
            if len(faults) > MAX_FINDINGS_EACH:
                more[rule.name] = len(faults) - MAX_FINDINGS_EACH
    return Result(sorted(found, key=_place), "", more)


def _place(fault: Fault) -> tuple[Position, str]:
    return fault.position or Position(0, 0), fault.key


def _findings(script: Script, rule: Rule) -> set[Fault]:
    return {
        Fault(
            script.file,
            Position(node.lineno, script.column(node.lineno, node.col_offset)),
            rule.name,
            rule.reason,
            rule.fix,
            script.line(node.lineno),
        )
        for node in rule.find(script)
        if isinstance(node, ast.expr | ast.stmt)
        and not _is_accepted(script.line(node.lineno), rule.name)
        and not script.is_for_one_process(node)
    }


def _is_accepted(line: str, name: str) -> bool:
    """Whether a line ends with `# check: ok NAME`, or with several names."""
    _, mark, names = line.partition("# check: ok ")
    return bool(mark) and name in names.replace(",", " ").split()
