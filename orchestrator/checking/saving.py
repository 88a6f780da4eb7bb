"""Rules on files: who writes them, what is in them, onto which device they are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.script import DDP, FSDP, SHARD, Script
from orchestrator.checking.tree import last, path
from orchestrator.checking.words import constant, keyword, words

SAVERS = (
    "torch.save",
    "safetensors.torch.save_file",
    "safetensors.torch.save_model",
    "pickle.dump",
)
GATHER = (  # of torch.distributed.checkpoint.state_dict
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"
)
SHARDERS = ("torch.distributed.tensor.parallel.parallelize_module",)
LOGGERS = ("torch.utils.tensorboard.SummaryWriter", "tensorboardX.SummaryWriter", "wandb.init")
MODELS = re.compile(
    r"model|ckpt|checkpoint|state|weight|resume|snapshot|pretrain|net", re.IGNORECASE
)
UNSHARED = ("BytesIO", "TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile")
MEMORY = re.compile(r"_*(buf|memory|stream|bytes)", re.IGNORECASE)
KEEPS = re.compile(r"save|dump|write|checkpoint|ckpt|^dict$|update$|append$|put$", re.IGNORECASE)


def _by_every_rank(script: Script) -> Iterator[ast.AST]:
    if not _shards(script):
        yield from _unguarded(script)


def _of_parts(script: Script) -> Iterator[ast.AST]:
    if _shards(script):
        yield from _unguarded(script)


def _shards(script: Script) -> bool:
    """Whether a model is in parts: then a rank by itself has no whole state."""
    return any(script.called(FSDP, SHARD, *SHARDERS))


def _unguarded(script: Script) -> Iterator[ast.Call]:
    for call in script.called(*SAVERS):
        own = _has_own_file(script, call) or _is_of_memory(script, call.args[1:2])
        if not own and _is_of_disk(script, call) and not script.is_guarded(call):
            yield call


def _has_own_file(script: Script, call: ast.Call) -> bool:
    """Whether each rank writes a file of its own, or none, as far as its name says."""
    files = [*call.args[1:2], *(k.value for k in call.keywords if k.arg in ("f", "filename"))]
    if any("devnull" in script.made_of(file) for file in files):
        return True
    return any("rank" in word.lower() for file in files for word in words(file)) or any(
        map(script.tells_rank, files)
    )


def _is_of_disk(script: Script, call: ast.Call) -> bool:
    """Whether what pickle.dump writes to is a file that is opened here; it may be a pipe."""
    if script.name(call.func) != "pickle.dump" or len(call.args) < 2:
        return True
    made = [call.args[1], *script.given.get(path(call.args[1]), [])]
    return any(last(path(v.func)) == "open" for v in made if isinstance(v, ast.Call))


def _is_of_memory(script: Script, files: list[ast.expr]) -> bool:
    """Whether a file is one of io.BytesIO, of a temporary name, or named like one."""
    if any(isinstance(file, ast.Name) and MEMORY.match(file.id) for file in files):
        return True
    made = (value for file in files for value in script.given.get(path(file), []))
    return any(last(path(value.func)) in UNSHARED for value in made if isinstance(value, ast.Call))


def _logs_of_every_rank(script: Script) -> Iterator[ast.AST]:
    for call in script.called(*LOGGERS):
        own = script.tells_rank(call) or keyword(call, "group")
        if not own and not script.is_guarded(call):
            yield call


def _downloads(script: Script) -> Iterator[ast.AST]:
    """Downloads by all ranks, where no rank does it before the others."""
    calls = [c for _, c in script.calls if constant(keyword(c, "download")) is True]
    if not any(script.is_guarded(call) for call in calls):
        yield from calls


def _with_prefix(script: Script) -> Iterator[ast.AST]:
    """state_dict of the wrapper, whose keys begin with `module.`, where it is kept."""
    wrapped = script.wrapped(DDP)
    slices = (node.lower for node in script.nodes if isinstance(node, ast.Slice))
    prefix = len("module.")
    if any("module." in w for w in words(script.tree)) or prefix in map(constant, slices):
        return  # they are taken off somewhere
    for call in script.methods("state_dict"):
        assert isinstance(call.func, ast.Attribute)
        if script.variable(call.func.value) in wrapped and _is_kept(script, call):
            yield call


def _is_kept(script: Script, call: ast.Call) -> bool:
    """Whether the value goes into a file, a dictionary or a variable, as far as can be seen."""
    if script.asks_for_wrapper(call):
        return False
    for above, below in script.above(call):
        if isinstance(above, ast.Call) and below is not above.func:
            return bool(KEEPS.search(path(above.func) or getattr(above.func, "attr", "")))
        if isinstance(above, ast.stmt):
            return isinstance(above, ast.Assign | ast.Return)
    return False


def _onto_one_gpu(script: Script) -> Iterator[ast.AST]:
    for call in script.called("torch.load"):
        given = keyword(call, "map_location") is not None or len(call.args) > 1
        spread = any(k.arg is None for k in call.keywords)  # **options
        own = script.is_guarded(call) or _is_of_memory(script, call.args[:1])
        if not given and not spread and not own and _is_of_a_model(script, call):
            yield call


def _is_of_a_model(script: Script, call: ast.Call) -> bool:
    """Whether it is a model that is loaded, as far as the statement says: data lie on the CPU."""
    statement = next(above for above, _ in script.above(call) if isinstance(above, ast.stmt))
    shallow = isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return)
    return any(map(MODELS.search, words(statement if shallow else call)))


RULES = {
    "save-on-every-rank": (
        "all ranks write the same file at once, and a reader finds a mixture",
        "put it behind `if rank == 0:` (a sharded model's state is gathered on all ranks before)",
        _by_every_rank,
    ),
    "sharded-save": (
        "all ranks write the same file at once, each with its part of the model",
        f"torch.distributed.checkpoint.save on all ranks; or {GATHER} on all, torch.save on rank 0",
        _of_parts,
    ),
    "module-prefix": (
        "the names in it begin with `module.`, and no model without DDP can load them",
        "save model.module.state_dict()",
        _with_prefix,
    ),
    "load-without-map-location": (
        "tensors go back to the device that they were saved from: all ranks load onto GPU 0",
        'give torch.load map_location="cpu", or the rank\'s own device',
        _onto_one_gpu,
    ),
    "log-on-every-rank": (
        "each rank begins a log of its own under the same name, and the curves are mixed",
        "put it behind `if rank == 0:`",
        _logs_of_every_rank,
    ),
    "download-on-every-rank": (
        "all ranks download to the same place at once, and some read half a file",
        "download on rank 0 (local rank 0 where each node has its disk), then dist.barrier()",
        _downloads,
    ),
}
