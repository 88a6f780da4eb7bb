"""The rule on leaving a training loop, which all ranks have to do at the same step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.kind import training_loops
from orchestrator.checking.script import Script
from orchestrator.checking.tree import Function, path
from orchestrator.checking.words import constant


def _stop_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """What leaves a training loop in a branch that only some ranks take."""
    training = set(training_loops(script))
    for node in script.nodes if training else ():
        if not isinstance(node, ast.Break | ast.Return) and not _is_quiet_end(script, node):
            continue
        loops = _loops(script, node)
        left = loops[:1] if isinstance(node, ast.Break) else loops
        if any(loop in training and script.enclosing_rank_test(node, loop) for loop in left):
            yield node


def _loops(script: Script, node: ast.AST) -> list[ast.AST]:
    """The loops around a node in its function, innermost first."""
    found: list[ast.AST] = []
    for above, below in script.above(node):
        if isinstance(above, Function):
            break
        if isinstance(above, ast.For | ast.While) and below not in above.orelse:
            found.append(above)
    return found


def _is_quiet_end(script: Script, node: ast.AST) -> bool:
    """Whether it ends the process as if all were well: a failure ends the other ranks too."""
    if isinstance(node, ast.Raise):
        raised = node.exc
        if isinstance(raised, ast.Call):
            return path(raised.func) == "SystemExit" and not any(raised.args)
        return raised is not None and path(raised) == "SystemExit"
    if not script.exits(node):
        return False
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Call)
    return all(constant(argument) == 0 for argument in node.value.args)


RULES = {
    "stop-on-one-rank": (
        "this rank leaves the training loop, and the others wait for its gradients",
        "let rank 0 decide, tell all ranks by dist.broadcast, and leave on all of them",
        _stop_on_one_rank,
    ),
}
