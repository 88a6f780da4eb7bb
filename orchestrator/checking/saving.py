"""Rules on files: who writes them, what is in them, onto which device they are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script
from orchestrator.checking.words import constant, keyword, words

SAVERS = (
    "torch.save",
    "safetensors.torch.save_file",
    "safetensors.torch.save_model",
    "pickle.dump",
)
LOGGERS = ("torch.utils.tensorboard.SummaryWriter", "tensorboardX.SummaryWriter", "wandb.init")
MODELS = re.compile(
    r"model|ckpt|checkpoint|state|weight|resume|snapshot|pretrain|net", re.IGNORECASE
)
UNSHARED = ("BytesIO", "TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile")
KEEPS = re.compile(r"save|dump|write|checkpoint|ckpt|^dict$|update$|append$|put$", re.IGNORECASE)


def _by_every_rank(script: Script) -> Iterator[ast.AST]:
    for call in script.called(*SAVERS):
        if script.is_guarded(call) or _has_own_file(call) or _is_of_memory(script, call.args[1:2]):
            continue
        yield call


def _has_own_file(call: ast.Call) -> bool:
    """Whether each rank writes a file of its own, as far as its name says."""
    return any("rank" in word.lower() for argument in call.args[1:2] for word in words(argument))


def _is_of_memory(script: Script, files: list[ast.expr]) -> bool:
    """Whether a file is one of io.BytesIO or of a temporary name."""
    calls = (c for n, c in script.calls if n.rpartition(".")[2] in UNSHARED)
    holders = [above for above, _ in map(next, map(script.above, calls))]
    given = [t for h in holders for t in _targets(h)]
    return any(ast.unparse(file) in given for file in files)


def _targets(holder: ast.AST) -> list[str]:
    """Names that an assignment or a `with ... as` gives to what is made in it."""
    if isinstance(holder, ast.withitem):
        return [ast.unparse(holder.optional_vars)] if holder.optional_vars else []
    return list(map(ast.unparse, holder.targets)) if isinstance(holder, ast.Assign) else []


def _logs_of_every_rank(script: Script) -> Iterator[ast.AST]:
    for call in script.called(*LOGGERS):
        own = any("rank" in word.lower() for word in words(call)) or keyword(call, "group")
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
    strips = any("module." in word for word in words(script.tree))
    for call in script.methods("state_dict"):
        assert isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) in wrapped and not strips and _is_kept(script, call):
            yield call


def _is_kept(script: Script, call: ast.Call) -> bool:
    """Whether the value goes into a file, a dictionary or a variable, as far as can be seen."""
    if script.asks_for_wrapper(call):
        return False
    for above, below in script.above(call):
        if isinstance(above, ast.Call) and below is not above.func:
            return bool(KEEPS.search(ast.unparse(above.func)))
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
        "put it behind `if rank == 0:`; for sharded state take torch.distributed.checkpoint",
        _by_every_rank,
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
        "download on rank 0, then dist.barrier(), then open it on all ranks with download=False",
        _downloads,
    ),
}
