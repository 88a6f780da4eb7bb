"""Rules on what all ranks have to do together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script

NAMES = (
    "barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object",
    "all_gather_into_tensor", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "gather_object",
    "scatter", "scatter_object_list",
)  # fmt: skip
COLLECTIVES = frozenset(f"torch.distributed.{name}" for name in NAMES)


def _on_one_rank(script: Script) -> Iterator[ast.AST]:
    """Collectives in a branch that only some ranks take, without one in the other branch."""
    for name, call in script.calls:
        if name not in COLLECTIVES:
            continue
        test = script.first_rank_test(call)
        if isinstance(test, ast.If) and not _both_ways(script, test):
            yield call


def _both_ways(script: Script, test: ast.If) -> bool:
    """Whether the other ranks come to a collective too: in the other branch, or in a second test
    of the rank that stands beside this one."""
    if any(_has_collective(script, statement) for statement in test.orelse):
        return True
    above, below = next(script.above(test))
    for field in ("body", "orelse", "finalbody"):
        block = getattr(above, field, None)
        if isinstance(block, list) and below in block:
            others = [s for s in block if isinstance(s, ast.If) and s is not test]
            return any(
                ast.unparse(s.test) != ast.unparse(test.test) and _is_opposite(s.test, test.test)
                and _has_collective(script, s) for s in others
            )  # fmt: skip
    return False


def _is_opposite(one: ast.expr, other: ast.expr) -> bool:
    """Whether two tests ask for the same thing the other way round, as far as their words say."""
    names = [{n.id for n in ast.walk(test) if isinstance(n, ast.Name)} for test in (one, other)]
    return bool(names[0] & names[1])


def _has_collective(script: Script, node: ast.AST) -> bool:
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(script.name(call.func) in COLLECTIVES for call in calls)


def _forward_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """The wrapped model called in a branch that only some ranks take."""
    wrapped = script.wrapped(DDP)
    for _, call in script.calls:
        if ast.unparse(call.func) in wrapped and isinstance(script.first_rank_test(call), ast.If):
            yield call


RULES = {
    "collective-on-one-rank": (
        "only some ranks come here, and wait for the others until the time limit",
        "move it out of the branch, so that all ranks call it",
        _on_one_rank,
    ),
    "forward-on-one-rank": (
        "DDP's forward shares buffers with all ranks, and the others do not come here: it hangs",
        "call model.module in this branch",
        _forward_on_one_rank,
    ),
}
