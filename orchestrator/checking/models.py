"""Rules on the wrapped model."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from orchestrator.checking.script import DDP, FSDP, SHARD, Script
from orchestrator.checking.words import constant, keyword, words

CHECKPOINT = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
# Attributes of torch.nn.Module and of DistributedDataParallel (torch 2.13).
KNOWN = frozenset((
    "T_destination", "add_module", "apply", "batched_grad_copy", "bfloat16",
    "broadcast_bucket_size", "broadcast_buffers", "bucket_bytes_cap",
    "bucket_bytes_cap_default", "bucket_bytes_cap_list", "buffers", "call_super_init",
    "children", "compile", "cpu", "cuda", "device", "device_ids", "device_type", "dim",
    "double", "dump_patches", "eval", "extra_repr", "find_unused_parameters", "float",
    "forward", "forward_sync_buffers", "gather", "get_buffer", "get_extra_state",
    "get_parameter", "get_submodule", "gradient_as_bucket_view", "half", "ipu",
    "is_multi_device_module", "join", "join_device", "join_hook", "join_process_group",
    "load_state_dict", "logger", "mixed_precision", "module", "modules", "modules_buffers",
    "mtia", "named_buffers", "named_children", "named_module_buffers", "named_modules",
    "named_parameters", "no_sync", "output_device", "parameters", "parameters_to_ignore",
    "process_group", "reducer", "register_backward_hook", "register_buffer",
    "register_comm_hook", "register_forward_hook", "register_forward_pre_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
    "register_module", "register_parameter", "register_state_dict_post_hook",
    "register_state_dict_pre_hook", "require_backward_grad_sync",
    "require_forward_param_sync", "requires_grad_", "scatter", "set_extra_state",
    "set_submodule", "share_memory", "skip_all_reduce_unused_params", "state_dict",
    "static_graph", "to", "to_empty", "to_kwargs", "train", "training", "type",
    "use_side_stream_for_tensor_copies", "will_sync_module_buffers", "xpu", "zero_grad",
))  # fmt: skip


def _gradients_apart(script: Script) -> Iterator[ast.AST]:
    """The first backward pass of a script in which nothing averages gradients."""
    if script.trains_alone:
        yield from itertools.islice(script.methods("backward"), 1)


def _attribute_of_wrapper(script: Script) -> Iterator[ast.AST]:
    """Uses of the model's own attributes through the wrapper, which does not have them."""
    wrapped = {n: c for n, c in script.wrapped(DDP).items() if not _becomes_another(script, n)}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            call = wrapped.get(ast.unparse(node.value))
            if call is None or _is_known(node.attr) or script.asks_for_wrapper(node):
                continue
            if _follows(script, call, node):
                yield node


def _follows(script: Script, call: ast.Call, node: ast.expr) -> bool:
    same = script.function_of(node) is script.function_of(call)
    return same and node.lineno > call.lineno


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith("_")


def _becomes_another(script: Script, name: str) -> bool:
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
    if not any(map(_is_reentrant, script.called(*CHECKPOINT))) and not any(
        map(_is_reentrant, script.methods("gradient_checkpointing_enable"))
    ):
        return
    for call in script.called(DDP):
        if constant(keyword(call, "find_unused_parameters")) is True:
            yield call


def _is_reentrant(call: ast.Call) -> bool:
    """Whether it does not say use_reentrant=False, itself or in gradient_checkpointing_kwargs."""
    given = keyword(call, "use_reentrant")
    options = keyword(call, "gradient_checkpointing_kwargs")
    return constant(given) is not False and not (options and "use_reentrant" in words(options))


def _optimizer_before_sharding(script: Script) -> Iterator[ast.AST]:
    """Optimizers made of parameters that sharding then replaces."""
    shards = list(script.called(FSDP, SHARD))
    for name, call in script.calls:
        if not name.startswith("torch.optim.") or "lr_scheduler" in name:
            continue
        later = [s for s in shards if script.function_of(s) is script.function_of(call)]
        if later and all(call.lineno < s.lineno for s in later):
            yield call


def _data_parallel(script: Script) -> Iterator[ast.AST]:
    """torch.nn.DataParallel, where nothing else spreads the model."""
    if not any(script.called(DDP, FSDP, SHARD)):
        yield from script.called("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")


def _no_sync_too_late(script: Script) -> Iterator[ast.AST]:
    """no_sync around the backward pass alone."""
    wrapped = script.wrapped(DDP)
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.With):
            continue
        held = {_held(item.context_expr) for item in node.items} & wrapped.keys()
        if any(not _has(node, name) and _has(node, "backward") for name in held):
            yield node


def _has(block: ast.With, name: str) -> bool:
    """Whether a name, such as `self.model` or `backward`, is in a block's body."""
    inside = (part for line in block.body for part in ast.walk(line) if isinstance(part, ast.expr))
    return any(ast.unparse(part) == name or getattr(part, "attr", "") == name for part in inside)


def _held(context: ast.expr) -> str:
    """The model of `model.no_sync()`."""
    if isinstance(context, ast.Call) and isinstance(context.func, ast.Attribute):
        return ast.unparse(context.func.value) if context.func.attr == "no_sync" else ""
    return ""


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
    "data-parallel": (
        "each rank would take all GPUs of its node",
        "wrap the model in DistributedDataParallel instead",
        _data_parallel,
    ),
    "no-sync-too-late": (
        "DDP decides in the forward pass, so gradients are sent in spite of no_sync",
        "put the forward pass inside no_sync too",
        _no_sync_too_late,
    ),
}
