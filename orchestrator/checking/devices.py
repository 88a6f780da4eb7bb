"""Rules on devices: each rank on its own."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script
from orchestrator.checking.words import constant, constants, keyword, words

SETTERS = (
    "torch.cuda.set_device",
    "torch.set_default_device",
    "torch.accelerator.set_device_index",
)
VISIBLE = "os.environ['CUDA_VISIBLE_DEVICES']"


def _first_gpu(script: Script) -> Iterator[ast.AST]:
    """Devices that mean GPU 0 on every rank."""
    for _, call in script.calls:
        if _is_index_zero(call) and script.first_rank_test(call) is None:
            yield call
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and VISIBLE in map(ast.unparse, node.targets):
            yield from [node] if str(constant(node.value)).isdecimal() else []
    if not any(script.called(*SETTERS)):
        current = (call for name, call in script.calls if _is_default(name, call))
        yield from itertools.islice(current, 1)  # one call of set_device mends all


def _is_index_zero(call: ast.Call) -> bool:
    """`cuda:0` as an argument, or .cuda(0), or device_ids=[0]."""
    if any("cuda:0" in constants(argument) for argument in call.args):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and call.args:
        return constant(call.args[0]) == 0 and not isinstance(constant(call.args[0]), bool)
    ids = keyword(call, "device_ids")
    return isinstance(ids, ast.List) and [constant(item) for item in ids.elts] == [0]


def _is_default(name: str, call: ast.Call) -> bool:
    """.cuda(), .to("cuda") or torch.device("cuda"), which mean the current device: GPU 0 where none
    is set."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "cuda":
        return not call.args
    if (name == "torch.device" and len(call.args) == 1) or (method == "to" and call.args):
        return "cuda" in constants(call.args[0])
    return False


def _global_rank(script: Script) -> Iterator[ast.AST]:
    """The rank in the world where the rank on the node belongs."""
    world = _world_ranks(script)
    for name, call in script.calls:
        if name == "torch.cuda.set_device" or name == "torch.device":
            given: list[ast.expr] = call.args
        elif name == DDP and isinstance(ids := keyword(call, "device_ids"), ast.List):
            given = ids.elts
        else:
            continue
        if any(_is_named(argument, world) for argument in given):
            yield call


def _is_named(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of these variables, or a text `cuda:` with it."""
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(_is_named(value, names) for value in values)
    return isinstance(node, ast.Name) and node.id in names


def _world_ranks(script: Script) -> set[str]:
    """Names of variables that are only ever the rank in the world."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return {name for name, given in values.items() if all(_is_world_rank(script, v) for v in given)}


def _is_world_rank(script: Script, value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and script.name(value.func) == "torch.distributed.get_rank":
        return True
    found = set(words(value))
    return (
        "RANK" in found
        and "environ" in found | {w.rpartition(".")[2] for w in found}
        and not (any(isinstance(part, ast.BinOp) for part in ast.walk(value)))
    )


RULES = {
    "gpu-0": (
        "all ranks of a node take GPU 0",
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first, and name no index',
        _first_gpu,
    ),
    "rank-as-gpu": (
        "on the second node there is no GPU of that number",
        'take int(os.environ["LOCAL_RANK"]), the rank on the node',
        _global_rank,
    ),
}
