"""Rules on data: to each rank its part, the same split everywhere, another order each epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.script import Script
from orchestrator.checking.words import constant, keyword, words

LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.DistributedSampler"
STREAM = "torch.utils.data.IterableDataset"
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
ANY_SEED = re.compile(r"(set|fix|setup|init|make|seed)_?(all_?|random_?)?seeds?|seed_everything")
# Where ranks may well draw differently: samples that are changed, batches that are mixed.
OWN_DRAWS = re.compile(r"__getitem__|__call__|forward|collate.*|.*(mix|mask|augment|transform).*")
PARTS = re.compile(r"rank|shard|split_by_node|world|distribut", re.IGNORECASE)


def _without_sampler(script: Script) -> Iterator[ast.AST]:
    """Loaders that shuffle and have no sampler that knows of ranks."""
    for call in script.called(LOADER):
        if (
            _may_shuffle(call)
            and not _has_sampler(call)
            and not _knows_ranks(call)
            and not script.is_guarded(call)
        ):
            yield call


def _may_shuffle(call: ast.Call) -> bool:
    """Whether it is told to, also by a variable: unless that depends on a sampler or on ranks."""
    given = keyword(call, "shuffle")
    if given is None or isinstance(given, ast.Constant):
        return constant(given) is True
    return not _knows_ranks(given) and not any("sampler" in word.lower() for word in words(given))


def _has_sampler(call: ast.Call) -> bool:
    given = [keyword(call, name) for name in ("sampler", "batch_sampler")]
    return len(call.args) > 3 or any(g is not None and not _is_none(g) for g in given)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _knows_ranks(node: ast.AST) -> bool:
    """Whether a data set may be a rank's own part, as far as its words say."""
    return any(map(PARTS.search, words(node)))


def _sampler_and_shuffle(script: Script) -> Iterator[ast.AST]:
    for call in script.called(LOADER):
        if _has_sampler(call) and constant(keyword(call, "shuffle")) is True:
            yield call


def _unused_sampler(script: Script) -> Iterator[ast.AST]:
    """Samplers that are given to nothing, though there is a loader."""
    for call in script.called(SAMPLER) if any(script.called(LOADER)) else ():
        above, _ = next(script.above(call))
        targets = above.targets if isinstance(above, ast.Assign) else []
        if targets and not any(_is_handed_on(script, target) for target in targets):
            yield call


def _is_handed_on(script: Script, target: ast.expr) -> bool:
    """Whether a variable is used for more than its own methods, or is no plain one."""
    if not isinstance(target, ast.Name):
        return True
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load):
            above, _ = next(script.above(node))
            if not isinstance(above, ast.Attribute):
                return True
    return False


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
    """Draws that split or order data, in a script that sets no seed which all ranks share."""
    if any(ANY_SEED.fullmatch(name.rpartition(".")[2]) for name, _ in script.calls):
        return
    for call in script.called(*DRAWS):
        name = script.name(call.func)
        seeds = list(
            script.called(*next(s for start, s in SEEDS.items() if name.startswith(start)))
        )
        if name.endswith("random_split"):
            seeds = [seed for seed in seeds if not _knows_ranks(seed)]
        if not seeds and keyword(call, "generator") is None and not _is_own_draw(script, call):
            yield call


def _is_own_draw(script: Script, call: ast.Call) -> bool:
    function = script.function_of(call)
    named = isinstance(function, ast.FunctionDef) and OWN_DRAWS.fullmatch(function.name)
    return bool(named) or any(w in ("shape", "size", "batch_size") for w in words(call))


def _same_stream(script: Script) -> Iterator[ast.AST]:
    """Streams of data that know nothing of ranks."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and STREAM in map(script.name, node.bases):
            iterates = any(
                isinstance(f, ast.FunctionDef) and f.name == "__iter__" for f in node.body
            )
            if iterates and not _knows_ranks(node):
                yield node


RULES = {
    "no-sampler": (
        "each rank draws from all of the data, so one epoch is as many as there are ranks",
        "give the loader sampler=DistributedSampler(dataset), and no shuffle=True",
        _without_sampler,
    ),
    "sampler-and-shuffle": (
        "DataLoader refuses shuffle=True beside a sampler",
        "leave shuffle=True out; DistributedSampler shuffles by itself",
        _sampler_and_shuffle,
    ),
    "unused-sampler": (
        "no loader is given this sampler, so each rank goes through all of the data",
        "give it to the DataLoader as sampler=",
        _unused_sampler,
    ),
    "no-set-epoch": (
        "without set_epoch the sampler has the same order in each epoch",
        "call sampler.set_epoch(epoch) at the begin of each epoch",
        _without_set_epoch,
    ),
    "unseeded-split": (
        "no seed that all ranks share is set: each draws another split, with others' test data",
        "seed before it, the same on all ranks, or give it a generator with a seed",
        _without_seed,
    ),
    "same-stream": (
        "it gives each rank the same samples: a stream has no sampler",
        "let rank r of N take every Nth sample from the r-th on (dist.get_rank, get_world_size)",
        _same_stream,
    ),
}
