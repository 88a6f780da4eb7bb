"""Rules on the wrapped model."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from orchestrator.checking.kind import is_distributed, training_loops
from orchestrator.checking.script import DDP, FSDP, SHARD, Script
from orchestrator.checking.tree import MAX_STEPS, choices, last, path
from orchestrator.checking.words import constant, keyword, words

CHECKPOINT = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
# Names of what averages gradients, or may do it.
AVERAGES = re.compile(
    r"^(ddp|\w*data_?parallel|fsdp|fully_shard|parallelize\w*|replicate|deepspeed|horovod|hvd"
    r"|\w*wrap\w*|prepare\w*|register_comm_hook)$|grad.*(reduce|sync|average|mean)"
    r"|(reduce|sync|average).*(grad|param)", re.IGNORECASE)  # fmt: skip
GRADIENTS = re.compile(r"grad|param|flat|bucket|^p$", re.IGNORECASE)
# Calls beside a backward pass that are no forward pass.
NO_FORWARD = frozenset((
    ".backward", ".scale", ".item", ".detach", ".append", "print", ".no_sync", "float", "len",
    ".mean", ".sum", ".step", ".update", ".zero_grad",
))  # fmt: skip
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
    apart = not is_distributed(script) or _leaves_them_apart(script)
    if apart and not any(script.called("torch.nn.DataParallel")):
        yield from itertools.islice(script.methods("backward"), 1)


def _leaves_them_apart(script: Script) -> bool:
    """Whether nothing averages gradients, though there are several processes: said only where
    the model that is trained is made here, and nothing unknown takes it."""
    if not any(training_loops(script)) or any(script.called(DDP, FSDP, SHARD)):
        return False
    named = (part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
             for part in script.nodes)  # fmt: skip
    if any(map(AVERAGES.search, named)) or any(map(_takes_gradients, script.calls)):
        return False
    models = {
        path(call.func.value)
        for name, made in script.calls
        if name.startswith("torch.optim.")
        for call in ast.walk(made)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        and call.func.attr == "parameters"
    }  # fmt: skip
    given = [value for model in models for value in script.given.get(model, [])]
    return bool(given) and all(_is_plain_model(script, value) for value in given)


def _takes_gradients(called: tuple[str, ast.Call]) -> bool:
    name, call = called
    given = {word for part in call.args for word in words(part)}
    return name.startswith("torch.distributed.") and any(map(GRADIENTS.search, given))


def _is_plain_model(script: Script, value: ast.expr) -> bool:
    """Whether a value is a model of one process: `Net(...)`, `torch.nn...`, with .to() or .cuda()
    behind it."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in ("to", "cuda", "train", "float", "half", "bfloat16"):
            break
        value = value.func.value
    name = script.name(value.func) if isinstance(value, ast.Call) else path(value)
    return (
        name.startswith(("torch.", "torchvision."))
        or last(name)[:1].isupper()
        or name in (script.given)
    )


def _attribute_of_wrapper(script: Script) -> Iterator[ast.AST]:
    """Uses of the model's own attributes through the wrapper, which does not have them."""
    for node in _own_attributes(script):
        if not _is_trained_by(script, node):
            yield node


def _own_attributes(script: Script) -> Iterator[ast.Attribute]:
    wrapped = {
        variable: call
        for variable, call in script.wrapped(DDP).items()
        if not _becomes_another(script, variable[0])
    }
    names = {name for name, _ in wrapped}
    set_here = {path(target) for target, _ in script.values}
    for node in script.nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if path(node.value) not in names or _is_known(node.attr) or path(node) in set_here:
            continue
        call = wrapped.get(script.variable(node.value))
        if call and _follows(script, call, node) and not script.asks_for_wrapper(node):
            yield node


def _around_the_wrapper(script: Script) -> Iterator[ast.AST]:
    """Losses of the model's own methods, or of model.module, that backward() is called on."""
    if any(map(_takes_gradients, script.calls)):
        return
    yield from (node for node in _own_attributes(script) if _is_trained_by(script, node))
    wrapped = script.wrapped(DDP)
    for _, call in script.calls:
        model, dot, _ = f"{path(call.func)}.".partition(".module.")
        is_inner = dot and (model, script.scope(call.func)) in wrapped
        if is_inner and _is_trained_by(script, call.func) and not script.asks_for_wrapper(call):
            yield call.func


def _is_trained_by(script: Script, function: ast.expr) -> bool:
    """Whether what a function gives back is what backward() is called on, in the same function."""
    made = next(above for above, _ in script.above(function))
    if not isinstance(made, ast.Call) or made.func is not function:
        return False
    scope = script.function_of(function)
    passes = [c for c in script.methods("backward") if script.function_of(c) is scope]
    used = {part for call in passes for part in ast.walk(call)}
    reached = {path(part) for part in used} - {""}
    pairs = [(t, v) for t, v in script.values if script.function_of(t) is scope]
    for _ in range(MAX_STEPS):
        more = [v for t, v in pairs if path(t) in reached]
        used |= {part for value in more for part in ast.walk(value)}
        reached |= {path(part) for value in more for part in ast.walk(value)} - {""}
    return made in used


def _follows(script: Script, call: ast.Call, node: ast.expr) -> bool:
    same = script.function_of(node) is script.function_of(call)
    return same and node.lineno > call.lineno


def _is_known(name: str) -> bool:
    return name in KNOWN or name.startswith("_")


def _becomes_another(script: Script, name: str) -> bool:
    """Whether the variable is something else in other places: then nothing is said of it."""
    latest = max(script.given[name], key=lambda value: value.lineno)
    parts = (part for part in choices(latest) if isinstance(part, ast.Call))
    return not any(script.name(part.func) == DDP for part in parts)


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
        if not name.startswith(("torch.optim.", "bitsandbytes.optim.")) or "lr_scheduler" in name:
            continue
        models = {
            path(part.func.value)
            for given in (*call.args, *(k.value for k in call.keywords))
            for part in ast.walk(given)
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
        }
        later = [
            s for s in shards
            if s.args and path(s.args[0]) in models
            and script.function_of(s) is script.function_of(call)
        ]  # fmt: skip
        if later and all(call.lineno < s.lineno for s in later):
            yield call


def _data_parallel(script: Script) -> Iterator[ast.AST]:
    """torch.nn.DataParallel, where nothing else spreads the model."""
    if not any(script.called(DDP, FSDP, SHARD)):
        yield from script.called("torch.nn.DataParallel")


def _no_sync_too_late(script: Script) -> Iterator[ast.AST]:
    """no_sync around the backward pass alone."""
    if not any(script.called(DDP)) or any(script.called(FSDP, SHARD)):
        return
    for node in script.nodes:
        if not isinstance(node, ast.With):
            continue
        parts = [part for item in node.items for part in choices(item.context_expr)]
        calls = [c for line in node.body for c in ast.walk(line) if isinstance(c, ast.Call)]
        named = {_method(call) for call in calls}
        if any(map(_is_no_sync, parts)) and ".backward" in named and named <= NO_FORWARD:
            yield node


def _method(call: ast.Call) -> str:
    return f".{call.func.attr}" if isinstance(call.func, ast.Attribute) else path(call.func)


def _is_no_sync(context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and _method(context) == ".no_sync"


RULES = {
    "gradients-apart": (
        "nothing averages the gradients of several ranks: each trains a model of its own",
        "call init_process_group, and wrap the model in DistributedDataParallel",
        _gradients_apart,
    ),
    "attribute-of-wrapper": (
        "the wrapper has no such attribute: it is the model's own",
        "write model.module in front of it; but a loss comes from a call of the wrapper itself",
        _attribute_of_wrapper,
    ),
    "around-the-wrapper": (
        "gradients are averaged only if the wrapper itself is called: each rank trains on its own",
        "have the model's forward do this, and call model(...): DDP goes by its forward pass",
        _around_the_wrapper,
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
