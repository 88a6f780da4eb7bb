"""Rules on what all ranks have to do together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.saving import GATHER
from orchestrator.checking.script import DDP, FSDP, SHARD, Script
from orchestrator.checking.tree import last, path
from orchestrator.checking.words import keyword, on_first, words

NAMES = (
    "barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object",
    "all_gather_into_tensor", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "gather_object",
    "scatter", "scatter_object_list", "new_group", "checkpoint.save", "checkpoint.load",
    "checkpoint.async_save", "checkpoint.state_dict.get_model_state_dict",
    "checkpoint.state_dict.get_optimizer_state_dict", "checkpoint.state_dict.get_state_dict",
    "checkpoint.state_dict.set_model_state_dict", "checkpoint.state_dict.set_state_dict",
    "checkpoint.state_dict.set_optimizer_state_dict",
    "checkpoint.state_dict_saver.save", "checkpoint.state_dict_loader.load",
)  # fmt: skip
COLLECTIVES = frozenset(f"torch.distributed.{name}" for name in NAMES)
WRAPPERS = frozenset((DDP, FSDP, SHARD))  # they compare or send parameters
# Where the group stands among the arguments (torch 2.13), if it is not the third.
PLACES = {
    "barrier": 0, "monitored_barrier": 0, "reduce": 3, "gather": 3, "gather_object": 3,
    "scatter": 3, "scatter_object_list": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3,
    "all_to_all_single": 4,
}  # fmt: skip
GROUPS = ("group", "process_group", "mesh", "device_mesh")


def _on_one_rank(script: Script) -> Iterator[ast.AST]:
    """Collectives in a branch that only some ranks take, without one in the other branch."""
    for name, call in script.calls:
        if not _is_collective(script, name, call) or _in_group(name, call):
            continue
        test = script.first_rank_test(call)
        if test is not None and not _both_ways(script, test, call):
            yield call


def _is_collective(script: Script, name: str, call: ast.Call) -> bool:
    return name in COLLECTIVES | WRAPPERS or _holds_collective(script, name, call)


def _holds_collective(script: Script, name: str, call: ast.Call | None = None) -> bool:
    """Whether a function of the script has a collective that all who call it come to."""
    function = script.functions.get(name) or _own_method(script, call)
    return function is not None and id(function) in _holders(script)


def _own_method(script: Script, call: ast.Call | None) -> ast.AST | None:
    """The function that `self.NAME(...)` calls."""
    owner, _, name = path(call.func).partition(".") if call else ("", "", "")
    body = script.class_of(call) if call and owner == "self" else None
    return next((f for f in body.body if getattr(f, "name", "") == name), None) if body else None


def _holders(script: Script) -> set[int]:
    """The functions with a collective outside of any `if`."""
    found = set()
    for name, call in script.calls:
        if name in COLLECTIVES and not _in_group(name, call):
            function = script.function_of(call)
            tests = (ast.If, ast.IfExp, ast.BoolOp, ast.Match)
            by_test = any(isinstance(above, tests) for above, _ in script.above(call))
            if function and not by_test and script.first_rank_test(call) is None:
                found.add(id(function))
    return found


def _in_group(name: str, call: ast.Call) -> bool:
    """Whether it may be for some ranks alone: it is given a group."""
    if last(name) == "new_group":  # all ranks call it, whoever belongs to the group
        return False
    given = [value for k in GROUPS if (value := keyword(call, k)) is not None]
    if name in COLLECTIVES:
        place = PLACES.get(last(name), 2)
        given += call.args[place : place + 1]
    else:  # the script's own: as far as its arguments say
        named = (
            part for part in call.args if any("group" in w or "mesh" in w for w in words(part))
        )
        given += named
    alone = keyword(call, "no_dist")
    return any(map(_is_part, given)) or (alone is not None)


def _is_part(group: ast.expr) -> bool:
    """Whether a group is another than that of all ranks."""
    is_none = isinstance(group, ast.Constant) and group.value is None
    return not is_none and not path(group).endswith(("group.WORLD", "GroupMember.WORLD"))


def _both_ways(script: Script, test: ast.AST, call: ast.AST) -> bool:
    """Whether the other ranks come to a collective too: in the other branch, or in a second test
    of the rank that stands beside this one."""
    if isinstance(test, ast.Match):
        return sum(_has_collective(script, case) for case in test.cases) > 1
    if not isinstance(test, ast.If | ast.IfExp):
        return False
    others: list[ast.AST] = []
    above = {below for _, below in script.above(call)}
    for branch in (test.body, test.orelse):
        parts = branch if isinstance(branch, list) else [branch]
        others += [] if above & set(parts) else parts
    if isinstance(test, ast.If) and script.leaves(test) and above & set(test.body):
        beside = script.beside(test)
        others += beside[beside.index(test) + 1 :]
    if any(_has_collective(script, part) for part in others):
        return True
    return any(
        isinstance(s, ast.If) and _is_opposite(s.test, test.test) and _has_collective(script, s)
        for s in script.beside(test)
        if s is not test
    )


def _is_opposite(one: ast.expr, other: ast.expr) -> bool:
    """Whether two tests may be true on different ranks, as far as their words say."""
    names = [{n.id for n in ast.walk(test) if isinstance(n, ast.Name)} for test in (one, other)]
    first = on_first(one), on_first(other)
    return bool(names[0] & names[1]) and (first[0] is not first[1] or None in first)


def _has_collective(script: Script, node: ast.AST) -> bool:
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(_is_collective(script, script.name(call.func), call) for call in calls)


def _forward_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """The wrapped model called in a branch that only some ranks take."""
    for call in _forwards(script, set(script.wrapped(DDP))):
        if script.first_rank_test(call) is not None:
            yield call


def _forwards(script: Script, models: set[tuple[str, ast.AST]]) -> Iterator[ast.Call]:
    names = {name for name, _ in models}
    for _, call in script.calls:
        model = re.sub(r"\.forward$", "", path(call.func))
        if model in names and (model, script.scope(call.func)) in models:
            yield call


def _sharded_on_one_rank(script: Script) -> Iterator[ast.AST]:
    """What needs all ranks' parts of a sharded model, in a branch that only some ranks take."""
    models = script.sharded()
    gathered = [
        call
        for call in script.methods("state_dict", "clip_grad_norm_", "optim_state_dict")
        if isinstance(call.func, ast.Attribute) and script.variable(call.func.value) in models
    ]
    for call in (*gathered, *_forwards(script, models)):
        if script.first_rank_test(call) is not None:
            yield call


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
    "sharded-on-one-rank": (
        "each rank has a part of this model: one alone waits for the others, or sees its part only",
        f"do it on all ranks; to save: {GATHER} on all ranks, torch.save on rank 0",
        _sharded_on_one_rank,
    ),
}
