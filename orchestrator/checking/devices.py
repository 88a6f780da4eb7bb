"""Rules on devices: each rank on its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script, constant, keyword, words

SETTERS = (
    "torch.cuda.set_device",
    "torch.set_default_device",
    "torch.accelerator.set_device_index",
)


def _first_gpu(script: Script) -> Iterator[ast.AST]:
    """Devices that mean GPU 0 on every rank."""
    sets = any(script.called(*SETTERS))
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and _is_gpu_0(node, sets):
            yield node


def _is_gpu_0(call: ast.Call, sets: bool) -> bool:
    return _is_index_zero(call) or (not sets and _is_default(call))


def _is_index_zero(call: ast.Call) -> bool:
    """`cuda:0` as an argument, or .cuda(0), or device_ids=[0]."""
    if "cuda:0" in map(constant, call.args):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and call.args:
        return constant(call.args[0]) == 0 and not isinstance(constant(call.args[0]), bool)
    ids = keyword(call, "device_ids")
    return isinstance(ids, ast.List) and [constant(item) for item in ids.elts] == [0]


def _is_default(call: ast.Call) -> bool:
    """.cuda() or .to("cuda"), which mean the current device: GPU 0 where none is set."""
    if isinstance(call.func, ast.Attribute) and not call.keywords:
        if call.func.attr == "cuda" and not call.args:
            return True
        return call.func.attr == "to" and [constant(a) for a in call.args[:1]] == ["cuda"]
    return False


def _global_rank(script: Script) -> Iterator[ast.AST]:
    """The rank in the world where the rank on the node belongs."""
    world = _world_ranks(script)
    for call in script.called("torch.cuda.set_device"):
        if any(isinstance(a, ast.Name) and a.id in world for a in call.args):
            yield call
    for call in script.called(DDP):
        ids = keyword(call, "device_ids")
        items = ids.elts if isinstance(ids, ast.List) else []
        if any(isinstance(item, ast.Name) and item.id in world for item in items):
            yield call


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
