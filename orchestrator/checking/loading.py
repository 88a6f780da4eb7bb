"""Rules on data: to each rank its part, the same split everywhere, another order each epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from orchestrator.checking.script import Script
from orchestrator.checking.tree import choices, path
from orchestrator.checking.words import argument, constant, keyword, words

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
# Samplers that draw from all of the data.
RANDOM = tuple(
    f"torch.utils.data.{name}"
    for name in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
)
# Methods of libraries that make a loader one of several ranks.
PREPARES = re.compile(r"(^|\.)(prepare\w*|setup_dataloaders|auto_dataloader)$")
JUDGES = re.compile(r"val|test|eval|dev|judge", re.IGNORECASE)
PARTS = re.compile(r"\brank|_rank|shard|split.*by_node|world|distribut", re.IGNORECASE)


def _without_sampler(script: Script) -> Iterator[ast.AST]:
    """Loaders that shuffle and have no sampler that knows of ranks."""
    for call in script.called(LOADER):
        if (
            _may_shuffle(call, script)
            and not _has_sampler(script, call)
            and not _is_own_part(script, call)
            and not _is_prepared(script, call)
            and not script.is_guarded(call)
        ):
            yield call


def _may_shuffle(call: ast.Call, script: Script) -> bool:
    """Whether it is told to, also by a variable: unless that depends on a sampler or on ranks."""
    if _random_sampler(script, call):
        return True
    given = argument(call, "shuffle", 2) or _in_options(call)
    if given is None or isinstance(given, ast.Constant):
        return constant(given) is True
    said = script.made_of(given)
    return not any(PARTS.search(word) or "sampler" in word.lower() for word in said)


def _in_options(call: ast.Call) -> ast.expr | None:
    """The value of shuffle in `**dict(shuffle=True)` or `**{"shuffle": True}`."""
    for options in (k.value for k in call.keywords if k.arg is None):
        if isinstance(options, ast.Call):
            return keyword(options, "shuffle")
        if isinstance(options, ast.Dict):
            pairs = zip(options.keys, options.values, strict=True)
            return next((value for key, value in pairs if constant(key) == "shuffle"), None)
    return None


def _random_sampler(script: Script, call: ast.Call) -> bool:
    """Whether its sampler is one of torch's that draws from all of the data."""
    given = argument(call, "sampler", 3)
    made = [given, *script.given.get(path(given), [])] if given else []
    made = [part for part in made if part is not None and not path(part)]
    return bool(made) and all(
        isinstance(part, ast.Call) and script.name(part.func) in RANDOM for part in made
    )


def _has_sampler(script: Script, call: ast.Call) -> bool:
    given = [argument(call, "sampler", 3), argument(call, "batch_sampler", 4)]
    named = any(g is not None and not _is_none(g) for g in given)
    options = any(k.arg is None and isinstance(k.value, ast.Name) for k in call.keywords)
    return options or (named and not _random_sampler(script, call))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_own_part(script: Script, call: ast.Call) -> bool:
    """Whether its data may be a rank's own part, as far as the words say that they are made of."""
    data = argument(call, "dataset", 0)
    return data is None or any(map(PARTS.search, script.made_of(data)))


def _is_prepared(script: Script, call: ast.Call) -> bool:
    """Whether a library is given the loader and gives back one that knows of ranks."""
    above = [a for a, _ in script.above(call) if isinstance(a, ast.Call)]
    names = {path(target) for target, value in script.values if value is call}
    for name, other in script.calls:
        takes = other in above or names & {path(part) for part in other.args}
        if takes and PREPARES.search(name or getattr(other.func, "attr", "")):
            return True
    return False


def _knows_ranks(node: ast.AST) -> bool:
    """Whether a part may be a rank's own, as far as its words say."""
    return any(map(PARTS.search, words(node)))


def _sampler_and_shuffle(script: Script) -> Iterator[ast.AST]:
    for call in script.called(LOADER):
        named = (argument(call, "sampler", 3), argument(call, "batch_sampler", 4))
        given = any(value is not None and not _is_none(value) for value in named)
        if given and constant(argument(call, "shuffle", 2)) is True:
            yield call


def _unused_sampler(script: Script) -> Iterator[ast.AST]:
    """Samplers that are given to nothing, though there is a loader."""
    used = _handed_on(script)
    for call in script.called(SAMPLER) if any(script.called(LOADER)) else ():
        above, _ = next(script.above(call))
        targets = above.targets if isinstance(above, ast.Assign) else []
        if targets and all(isinstance(t, ast.Name) and t.id not in used for t in targets):
            yield call


def _handed_on(script: Script) -> set[str]:
    """The variables that are used for more than their own methods."""
    return {
        node.id
        for node in script.nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if not isinstance(next(script.above(node))[0], ast.Attribute)
    }


def _without_set_epoch(script: Script) -> Iterator[ast.AST]:
    told = {path(call.func) for call in script.methods("set_epoch")}
    samplers = {f"{name}.set_epoch" for name, _ in script.wrapped(SAMPLER)}
    if (told and not told <= samplers) or not _has_epochs(script) or _is_told_elsewhere(script):
        return
    holders: dict[ast.expr, list[str]] = {}
    for target, value in script.values:
        for part in choices(value):
            holders.setdefault(part, []).append(path(target))
    for call in script.called(SAMPLER):
        names = holders.get(call, [])
        is_told = any(f"{name}.set_epoch" in told for name in names)
        judges = any(map(JUDGES.search, names))
        if constant(argument(call, "shuffle", 3)) is not False and not is_told and not judges:
            yield call


def _has_epochs(script: Script) -> bool:
    for node in script.nodes:
        if isinstance(node, ast.For | ast.While):
            parts = [node.target, node.iter] if isinstance(node, ast.For) else [node.test]
            if any("epoch" in word.lower() for part in parts for word in words(part)):
                return True
    return False


def _is_told_elsewhere(script: Script) -> bool:
    """Whether a function of another file is given a loader and the epoch, and may tell it."""
    loaders = {name for name, _ in script.wrapped(LOADER)}
    for name, call in script.calls:
        given = {path(part) for part in (*call.args, *(k.value for k in call.keywords))}
        own = name in script.functions or name.startswith("torch.")
        if not own and given & loaders and any("epoch" in part.lower() for part in given):
            return True
    return False


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
    for node in script.nodes:
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
