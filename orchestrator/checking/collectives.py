"""Rules on what all ranks have to do together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.script import DDP, FSDP, SHARD, Script
from orchestrator.checking.words import keyword, words

NAMES = (
    "barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object",
    "all_gather_into_tensor", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "gather_object",
    "scatter", "scatter_object_list", "new_group",
)  # fmt: skip
COLLECTIVES = frozenset(f"torch.distributed.{name}" for name in NAMES)
WRAPPERS = frozenset((DDP, FSDP, SHARD))  # they compare or send parameters


def _on_one_rank(script: Script) -> Iterator[ast.AST]:
    """Collectives in a branch that only some ranks take, without one in the other branch."""
    for name, call in script.calls:
        is_one = name in COLLECTIVES | WRAPPERS or _holds_collective(script, name)
        if is_one and not _in_group(call):
            test = script.first_rank_test(call)
            if isinstance(test, ast.If) and not _both_ways(script, test):
                yield call


def _holds_collective(script: Script, name: str) -> bool:
    """Whether a function of the script has a collective that all who call it come to."""
    function = script.functions.get(name)
    if function is None:
        return False
    calls = [part for part in ast.walk(function) if isinstance(part, ast.Call)]
    return any(
        script.name(call.func) in COLLECTIVES
        and not _in_group(call)
        and not any(isinstance(above, ast.If | ast.IfExp) for above, _ in script.above(call))
        for call in calls
    )


def _in_group(call: ast.Call) -> bool:
    """Whether it may be for some ranks alone: it is given a group."""
    given = [*call.args, *(k.value for k in call.keywords)]
    named = {word.lower() for argument in given for word in words(argument)}
    return keyword(call, "group") is not None or any("group" in w or "mesh" in w for w in named)


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
    names = {script.name(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    return bool(names & COLLECTIVES) or any(_holds_collective(script, name) for name in names)


def _forward_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """The wrapped model called in a branch that only some ranks take."""
    wrapped = script.wrapped(DDP)
    for _, call in script.calls:
        if ast.unparse(call.func) in wrapped and isinstance(script.first_rank_test(call), ast.If):
            yield call


def _stop_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """`break` out of a training loop in a branch that only some ranks take."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Break):
            loop = next(a for a, _ in script.above(node) if isinstance(a, ast.For | ast.While))
            test = script.enclosing_rank_test(node, loop)
            if test and any(loop in (a for a, _ in script.above(c)) for c in _passes(script)):
                yield node


def _passes(script: Script) -> Iterator[ast.Call]:
    return script.methods("backward")


RULES = {
    "collective-on-one-rank": (
        "only some ranks come here, and wait for the others until the time limit",
        "move it out of the branch, so that all ranks call it",
        _on_one_rank,
    ),
    "forward-on-one-rank": (
        "the wrapper sends buffers and gradients to all ranks: it waits for those not coming here",
        "call model.module in this branch",
        _forward_on_one_rank,
    ),
    "stop-on-one-rank": (
        "this rank leaves the training loop, and the others wait for its gradients",
        "let rank 0 decide, tell all ranks by dist.broadcast, and leave on all of them",
        _stop_on_one_rank,
    ),
}
