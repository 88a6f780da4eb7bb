"""Rules on checkpoints: who writes, what is in them, onto which device they are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.script import DDP, Script, keyword, words

SAVERS = (
    "torch.save",
    "safetensors.torch.save_file",
    "safetensors.torch.save_model",
    "pickle.dump",
)


def _by_every_rank(script: Script) -> Iterator[ast.AST]:
    for call in script.called(*SAVERS):
        if not script.is_guarded(call) and not _has_own_file(call):
            yield call


def _has_own_file(call: ast.Call) -> bool:
    """Whether each rank writes a file of its own, as far as its name says."""
    return any("rank" in word.lower() for argument in call.args[1:2] for word in words(argument))


def _with_prefix(script: Script) -> Iterator[ast.AST]:
    """state_dict of the wrapper, whose keys begin with `module.`."""
    wrapped = script.wrapped(DDP)
    strips = any("module." in word for word in words(script.tree))
    for call in script.methods("state_dict"):
        assert isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) in wrapped and not strips:
            yield call


def _onto_one_gpu(script: Script) -> Iterator[ast.AST]:
    for call in script.called("torch.load"):
        if keyword(call, "map_location") is None and len(call.args) < 2:
            yield call


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
}
