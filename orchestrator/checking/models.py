"""Rules on the wrapped model."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from orchestrator.checking.script import DDP, FSDP, SHARD, Script, constant, keyword

CHECKPOINT = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
# Attributes of torch.nn.Module and of DistributedDataParallel (torch 2.13).
KNOWN = frozenset(
    (
        "module",
        "train",
        "eval",
        "training",
        "forward",
        "parameters",
        "named_parameters",
        "buffers",
        "named_buffers",
        "modules",
        "named_modules",
        "children",
        "named_children",
        "state_dict",
        "load_state_dict",
        "zero_grad",
        "to",
        "cuda",
        "cpu",
        "half",
        "float",
        "double",
        "bfloat16",
        "type",
        "apply",
        "requires_grad_",
        "share_memory",
        "compile",
        "register_buffer",
        "add_module",
        "register_module",
        "register_parameter",
        "get_parameter",
        "get_buffer",
        "get_submodule",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "no_sync",
        "join",
        "join_hook",
        "register_comm_hook",
        "device_ids",
        "device",
        "logger",
        "reducer",
        "find_unused_parameters",
        "broadcast_buffers",
        "static_graph",
        "gather",
        "scatter",
    )
)


def _gradients_apart(script: Script) -> Iterator[ast.AST]:
    """The first backward pass of a script in which nothing averages gradients."""
    if script.trains_alone:
        yield from itertools.islice(script.methods("backward"), 1)


def _attribute_of_wrapper(script: Script) -> Iterator[ast.AST]:
    """Uses of the model's own attributes through the wrapper, which does not have them."""
    wrapped = {n: c for n, c in script.wrapped(DDP).items() if not _stays_itself(script, n)}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            call = wrapped.get(ast.unparse(node.value))
            if call is not None and not _is_known(node.attr) and _follows(script, call, node):
                yield node


def _follows(script: Script, call: ast.Call, node: ast.expr) -> bool:
    same = script.function_of(node) is script.function_of(call)
    return same and node.lineno > call.lineno


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith("_")


def _stays_itself(script: Script, name: str) -> bool:
    """Whether the variable is something else in other places: then nothing is said of it."""
    values = [
        node.value
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    wraps = [
        value for value in values if isinstance(value, ast.Call) and script.name(value.func) == DDP
    ]
    last = max(values, key=lambda value: value.lineno)
    return last not in wraps


def _unused_with_checkpointing(script: Script) -> Iterator[ast.AST]:
    """find_unused_parameters with activation checkpointing of the older, reentrant kind."""
    old = [
        c for c in script.called(*CHECKPOINT) if constant(keyword(c, "use_reentrant")) is not False
    ]
    old += list(script.methods("gradient_checkpointing_enable"))
    if not old:
        return
    for call in script.called(DDP):
        if constant(keyword(call, "find_unused_parameters")) is True:
            yield call


def _optimizer_before_sharding(script: Script) -> Iterator[ast.AST]:
    """Optimizers made of parameters that sharding then replaces."""
    shards = list(script.called(FSDP, SHARD))
    for name, call in script.calls:
        if not name.startswith("torch.optim.") or "lr_scheduler" in name:
            continue
        later = [s for s in shards if script.function_of(s) is script.function_of(call)]
        if later and all(call.lineno < s.lineno for s in later):
            yield call


RULES = {
    "gradients-apart": (
        "nothing averages the gradients of several ranks: each trains a model of its own",
        "call init_process_group, and wrap the model in DistributedDataParallel",
        _gradients_apart,
    ),
    "attribute-of-wrapper": (
        "the wrapper has no such attribute: it is the model's own",
        "write model.module in front of it",
        _attribute_of_wrapper,
    ),
    "unused-with-checkpointing": (
        "with reentrant activation checkpointing DDP fails: a parameter is marked ready twice",
        "give the checkpointing use_reentrant=False, or leave find_unused_parameters out",
        _unused_with_checkpointing,
    ),
    "optimizer-before-sharding": (
        "sharding replaces the parameters, and the optimizer goes on with the old ones",
        "make the optimizer after the model is wrapped",
        _optimizer_before_sharding,
    ),
}
