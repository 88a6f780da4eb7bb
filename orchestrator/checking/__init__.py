"""A static look at a training script for the mistakes that a change to several ranks makes.

Nothing of the script is run or imported: rules read its syntax tree.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from orchestrator.checking import collectives, devices, loading, models, saving
from orchestrator.checking.script import Script, read_script
from orchestrator.errors import Fault, Position

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


RULES: tuple[Rule, ...] = tuple(
    Rule(name, reason, fix, find)
    for part in (loading, saving, models, devices, collectives)
    for name, (reason, fix, find) in part.RULES.items()
)


def check(text: str, file: str, ignore: Sequence[str] = ()) -> list[Fault]:
    """Return what a script does that goes wrong on several ranks, by place.

    A script that trains in one process is looked at as if several ran it. One that does neither
    has no findings.

    Args:
        text: of the script.
        file: its name, for the findings.
        ignore: names of rules to leave out. A line with the comment `# check: ok NAME` leaves out
            that rule for itself.

    Raises:
        FaultsError: the text is no Python.
    """
    script = read_script(text, file)
    if not (script.is_distributed or script.trains_alone):
        return []
    rules = [rule for rule in RULES if rule.name not in ignore]
    found = {fault for rule in rules for fault in _findings(script, rule)}
    return sorted(found, key=lambda fault: (fault.position or Position(0, 0), fault.key))


def _findings(script: Script, rule: Rule) -> list[Fault]:
    found = (node for node in rule.find(script) if not script.is_for_one_process(node))
    nodes = list(itertools.islice(found, MAX_FINDINGS_EACH))
    places = [
        (node.lineno, node.col_offset) for node in nodes if isinstance(node, ast.expr | ast.stmt)
    ]
    return [
        Fault(
            script.file,
            Position(line, column + 1),
            rule.name,
            rule.reason,
            rule.fix,
            script.line(line),
        )
        for line, column in places
        if not _is_accepted(script.line(line), rule.name)
    ]


def _is_accepted(line: str, name: str) -> bool:
    """Whether a line ends with `# check: ok NAME`, or with several names."""
    _, mark, names = line.partition("# check: ok ")
    return bool(mark) and name in names.replace(",", " ").split()
