"""Whether a script is one that the rules are for, and why not if it is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.script import Script
from orchestrator.checking.tree import DDP, FSDP, SHARD, path
from orchestrator.checking.words import asks_for_rank, words

SETUP = re.compile(r"(.*\.)?(init_process_group|init_device_mesh)")
# Libraries that spread a training themselves.
LIBRARIES = (
    "accelerate", "deepspeed", "horovod", "lightning", "pytorch_lightning", "lightning_fabric",
    "ignite", "ray", "colossalai", "megatron", "torch_xla", "fastai", "composer", "trl", "bmtrain",
)  # fmt: skip
# Words of scripts that several processes run, whoever sets them up.
SPREAD = re.compile(
    r"(local|world|global)_?(rank|size)|distributed|ddp|fsdp|horovod|hvd|idist|get_rank"
    r"|is_main_process|accelerator", re.IGNORECASE)  # fmt: skip


def is_distributed(script: Script) -> bool:
    """Return whether a script sets up several processes by torch itself."""
    if any(SETUP.fullmatch(name) for name, _ in script.calls):
        return True
    return not spreading(script) and any(script.called(DDP, FSDP, SHARD))


def unjudged(script: Script) -> str:
    """Return why the rules say nothing of a script; "" for one that they are for."""
    if is_distributed(script):
        return ""
    if library := spreading(script):
        return f"{library} spreads the training, and what that does is not looked at"
    if not _trains(script):
        return (
            "it neither sets up torch.distributed nor trains a model: no loop with backward() and"
            " step() that is run when the file is"
        )
    if word := _spread_word(script):
        return f"it speaks of several processes ({word}), and leaves their set-up to another file"
    return ""


def spreading(script: Script) -> str:
    """Return the name of an imported library that spreads a training, "" if there is none."""
    for full in script.aliases.values():
        if full.partition(".")[0] in LIBRARIES:
            return full.partition(".")[0]
        if re.fullmatch(r"transformers\.\w*Trainer", full):
            return full
    return ""


def _spread_word(script: Script) -> str:
    modules = (part for full in script.aliases.values() for part in full.split("."))
    named = (word for word in (*modules, *words(script.tree)) if SPREAD.fullmatch(word))
    if found := next(named, ""):
        return found
    tests = (node.test for node in script.nodes if isinstance(node, ast.If))
    return "the rank" if any(map(asks_for_rank, tests)) else ""


def _trains(script: Script) -> bool:
    return any(training_loops(script)) and any(script.methods("step")) and _is_started(script)


def training_loops(script: Script) -> Iterator[ast.For | ast.While]:
    """Yield the loops with a backward pass, in them or in a function that they call."""
    reach = reaching(script)
    for node in script.nodes:
        if isinstance(node, ast.For | ast.While) and any(
            reaches(part, reach) for part in node.body
        ):
            yield node


def reaching(script: Script) -> frozenset[str]:
    """Return the names of the script's own functions that come to a backward pass."""
    if not any(script.methods("backward")):
        return frozenset()
    own = [n for n in script.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: frozenset[str] = frozenset()
    for _ in range(5):  # calls of calls
        more = found | {f.name for f in own if f.name not in found and reaches(f, found)}
        if more == found:
            break
        found = more
    return found


def reaches(node: ast.AST, functions: frozenset[str]) -> bool:
    """Return whether a part has a backward pass, or names a function that comes to one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            if part.attr == "backward" or (part.attr in functions and _is_self(part.value)):
                return True
        elif isinstance(part, ast.Name) and part.id in functions:
            return True
    return False


def _is_self(node: ast.AST) -> bool:
    return path(node) in ("self", "trainer", "cls")


def _is_started(script: Script) -> bool:
    """Whether the file does something when it is run, unlike a module of a library."""
    if any(isinstance(n, ast.Name) and n.id == "__name__" for n in script.nodes):
        return True
    own = {n.name for n in script.tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for _, call in script.calls:
        if script.function_of(call) is None and script.class_of(call) is None:
            named = {path(part) for part in (call.func, *call.args)}
            if named & own:
                return True
    return any(script.function_of(call) is None for call in script.methods("backward"))
