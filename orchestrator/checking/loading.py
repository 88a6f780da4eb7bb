"""Rules on data: to each rank its part, the same split everywhere, another order each epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.checking.script import Script, constant, keyword, words

LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.DistributedSampler"
# What draws from a random state that each process has by itself.
DRAWS = (
    "random.shuffle", "random.sample", "numpy.random.shuffle", "numpy.random.permutation",
    "torch.randperm", "torch.utils.data.random_split",
)  # fmt: skip
SEEDS = {
    "random.": ("random.seed",),
    "numpy.": ("numpy.random.seed", "numpy.random.default_rng"),
    "torch.": ("torch.manual_seed", "torch.random.manual_seed"),
}
ANY_SEED = (
    "set_seed",
    "seed_everything",
    "fix_seed",
    "setup_seed",
    "init_seeds",
    "set_random_seed",
)


def _without_sampler(script: Script) -> Iterator[ast.AST]:
    """Loaders that shuffle and have no sampler that knows of ranks."""
    for call in script.called(LOADER):
        given = [keyword(call, name) for name in ("sampler", "batch_sampler")]
        if any(g is not None and not _is_none(g) for g in given) or len(call.args) > 3:
            continue
        if constant(keyword(call, "shuffle")) is True and not _knows_ranks(call):
            yield call


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _knows_ranks(call: ast.Call) -> bool:
    """Whether the data set itself may be a rank's own part, as far as its name says."""
    return any(
        w in word.lower() for word in words(call) for w in ("rank", "shard", "split_by_node")
    )


def _without_set_epoch(script: Script) -> Iterator[ast.AST]:
    if any(script.methods("set_epoch")) or not _has_epochs(script):
        return
    for call in script.called(SAMPLER):
        if constant(keyword(call, "shuffle")) is not False:
            yield call


def _has_epochs(script: Script) -> bool:
    loops = (node for node in ast.walk(script.tree) if isinstance(node, ast.For))
    return any("epoch" in word.lower() for loop in loops for word in words(loop.target))


def _without_seed(script: Script) -> Iterator[ast.AST]:
    """Draws that split or order data, in a script that seeds nothing."""
    if any(name.rpartition(".")[2] in ANY_SEED for name, _ in script.calls):
        return
    for call in script.called(*DRAWS):
        name = script.name(call.func)
        seeds = next(seeds for prefix, seeds in SEEDS.items() if name.startswith(prefix))
        if not any(script.called(*seeds)) and keyword(call, "generator") is None:
            yield call


RULES = {
    "no-sampler": (
        "each rank draws from all of the data, so one epoch is as many as there are ranks",
        "give the loader sampler=DistributedSampler(dataset), and no shuffle=True",
        _without_sampler,
    ),
    "no-set-epoch": (
        "without set_epoch the sampler has the same order in each epoch",
        "call sampler.set_epoch(epoch) at the begin of each epoch",
        _without_set_epoch,
    ),
    "unseeded-split": (
        "no seed is set, so each rank draws another order or split, and trains on validation data",
        "seed before it, the same on all ranks, or give it a generator with a seed",
        _without_seed,
    ),
}
