"""Rules on devices: each rank on its own."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script
from orchestrator.checking.tree import choices, last, path
from orchestrator.checking.words import argument, constant, constants, keyword, words

SETTERS = ("set_device", "set_device_index", "set_default_device")
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = ("device", "map_location", "device_id")  # keywords
# Functions of other files that may set the device, too.
ELSEWHERE = re.compile(
    r"(init|setup|set_up|launch).*(dist|ddp|process|device|torch|mode|env)|.*distributed.*|ddp_setup"
)
SPAWNS = ("spawn", "start_processes", "Process", "launch")


def _first_gpu(script: Script) -> Iterator[ast.AST]:
    """Devices that mean GPU 0 on every rank."""
    visible = list(_visible(script))
    if any(_is_own(value) for _, value in visible):
        return  # each rank sees its own GPU alone, as number 0
    yield from (node for node, value in visible if str(constant(value)).isdecimal())
    for _, call in script.calls:
        if _is_index_zero(call) and script.first_rank_test(call, loose=True) is None:
            yield call
    for target, value in script.values:
        if re.search("device|^dev$", last(path(target))) and any(map(_is_text, choices(value))):
            yield value
    if not _sets_device(script):
        current = (call for name, call in script.calls if _is_default(name, call))
        yield from itertools.islice(current, 1)  # one call of set_device mends all


def _visible(script: Script) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What CUDA_VISIBLE_DEVICES is set to, with the place."""
    for node in script.nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Subscript) and constant(target.slice) == VISIBLE:
            assert isinstance(node, ast.Assign)
            yield node, node.value
    for call in script.methods("setdefault"):
        if len(call.args) == 2 and constant(call.args[0]) == VISIBLE:
            yield call, call.args[1]


def _is_own(value: ast.expr) -> bool:
    return not isinstance(value, ast.Constant) and any("rank" in w.lower() for w in words(value))


def _is_text(value: ast.expr) -> bool:
    return constant(value) == "cuda:0"


def _is_zero(value: ast.expr | None) -> bool:
    """Whether it is number 0, and not False."""
    return constant(value) == 0 and not isinstance(constant(value), bool | float)


def _is_index_zero(call: ast.Call) -> bool:
    """`cuda:0` where a device is given, .cuda(0), .to(0), set_device(0), or device_ids=[0]."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else path(call.func)
    given = [value for key in DEVICES if (value := keyword(call, key)) is not None]
    if name in ("to", "cuda", "device", *SETTERS):
        given += call.args[:1]
    if any(_is_text(part) for value in given for part in choices(value)):
        return True
    first = argument(call, "device", 0)
    if name in ("cuda", "set_device", "to") and isinstance(call.func, ast.Attribute):
        return _is_zero(first)
    if name == "device" and len(call.args) == 2:
        return constant(first) == "cuda" and _is_zero(call.args[1])
    ids = argument(call, "device_ids", 1) if name in ("DDP", last(DDP)) else None
    ids = ids or keyword(call, "device_ids")
    return isinstance(ids, ast.List) and len(ids.elts) == 1 and _is_zero(ids.elts[0])


def _sets_device(script: Script) -> bool:
    """Whether something sets the current device of a rank, as far as can be seen."""
    for name, call in script.calls:
        end = call.func.attr if isinstance(call.func, ast.Attribute) else last(name)
        if end in SETTERS and not _is_index_zero(call):
            return True
        if name == "torch.cuda.device" or end == "init_device_mesh" or keyword(call, "device_id"):
            return True
        own = name in script.functions or name.startswith("torch.")
        if not own and ELSEWHERE.fullmatch(end) and end != "init_process_group":
            return True
    return False


def _is_default(name: str, call: ast.Call) -> bool:
    """.cuda(), .to("cuda") or torch.device("cuda"), which mean the current device: GPU 0 where none
    is set."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "cuda":
        return argument(call, "device", 0) is None
    if (name == "torch.device" and len(call.args) == 1) or (method == "to" and call.args):
        return "cuda" in constants(call.args[0])
    return False


def _global_rank(script: Script) -> Iterator[ast.AST]:
    """The rank in the world where the rank on the node belongs."""
    if any(last(name) in SPAWNS for name, _ in script.calls):
        return  # the script starts the ranks of its one node by itself
    world = _world_ranks(script)
    for name, call in script.calls:
        given = _device_arguments(name, call)
        if any(_is_named(script, argument, world) for argument in given):
            yield call


def _device_arguments(name: str, call: ast.Call) -> list[ast.expr]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name == "torch.device":
        return call.args[:2]
    if method in ("set_device", "set_device_index", "cuda", "to"):
        first = argument(call, "device", 0)
        return [first] if first is not None else []
    ids = argument(call, "device_ids", 1) if name == DDP else None
    return ids.elts if isinstance(ids, ast.List) else []


def _is_named(script: Script, node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of these variables, or a text `cuda:` with it."""
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(_is_named(script, value, names) for value in values)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "format":
        return any(_is_named(script, value, names) for value in node.args)
    if isinstance(node, ast.BinOp) and str(constant(node.left)).startswith("cuda:"):
        return _is_named(script, node.right, names)
    return path(node) in names or _is_world_rank(script, node)


def _world_ranks(script: Script) -> set[str]:
    """Names of variables that are only ever the rank in the world."""
    found = set()
    for name, given in script.given.items():
        parts = [part for value in given for part in choices(value)]
        ranks = [part for part in parts if not isinstance(part, ast.Constant)]
        if ranks and all(_is_world_rank(script, part) for part in ranks):
            found.add(name)
    return found - {""}


def _is_world_rank(script: Script, value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and script.name(value.func) == "torch.distributed.get_rank":
        return not value.args and not value.keywords
    found = set(words(value))
    return (
        "RANK" in found
        and bool({"environ", "getenv"} & (found | {last(w) for w in found}))
        and not any(isinstance(part, ast.BinOp | ast.Compare) for part in ast.walk(value))
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
