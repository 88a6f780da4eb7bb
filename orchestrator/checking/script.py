"""What the rules want to know of a script: full names, what encloses what, what is guarded."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cached_property

from orchestrator.checking.words import asks_for_rank, asks_for_several, is_test, words
from orchestrator.errors import Fault, FaultsError, Position

# What makes a script one of several processes.
SETUP = re.compile(
    r"(torch\.distributed\.)?(init_process_group|init_device_mesh)"
    r"|torch\.nn\.parallel\.DistributedDataParallel|torch\.distributed\.fsdp\..*"
)
DDP = "torch.nn.parallel.DistributedDataParallel"
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
SHARD = "torch.distributed.fsdp.fully_shard"
# Names in tests of whether a model is wrapped at all.
WRAPPER_TEST = re.compile(
    r"^(isinstance|hasattr|getattr|type|module)$|ddp|fsdp|distribut|parallel|world|wrapped|multi",
    re.IGNORECASE,
)
# Words of scripts that several processes run, whoever sets them up.
SPREAD = re.compile(
    r"ranks?|(local|world|global)_?(rank|size)|distributed|ddp|fsdp|accelerat(e|or)|deepspeed|horovod"
    r"|hvd|lightning|pytorch_lightning|ignite|ray|colossalai|megatron|torch_xla|xm|idist|trainer"
    r"|get_rank|is_main_process|dataparallel", re.IGNORECASE)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Script:
    """A parsed script.

    Args:
        text: as it was read.
        file: its name, for findings.
        tree: of the whole.
    """

    def __init__(self, text: str, file: str, tree: ast.Module) -> None:
        self.file, self.tree = file, tree
        self._lines = text.splitlines()
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def line(self, number: int) -> str:
        """Return a line by its number, from 1."""
        return self._lines[number - 1] if number <= len(self._lines) else ""

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What imported names stand for: `DDP` for torch.nn.parallel.DistributedDataParallel."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    found[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    found[name.asname or name.name] = f"{node.module}.{name.name}"
        return found

    def name(self, node: ast.AST) -> str:
        """Return the full dotted name of an expression, "" where it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self.aliases.get(node.id, node.id)
        return _short(".".join([first, *reversed(parts)]))

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Every call with the full name of what is called, in the order of the text."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        return [(self.name(call.func), call) for call in calls]

    def called(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of functions by full name."""
        return (call for name, call in self.calls if name in names)

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of methods by their last name, of whatever object."""
        for _, call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                yield call

    @cached_property
    def is_distributed(self) -> bool:
        """Whether the script sets up several processes by torch itself."""
        return any(SETUP.fullmatch(name) for name, _ in self.calls)

    @cached_property
    def trains_alone(self) -> bool:
        """Whether the script trains a model in one process, as far as its words say."""
        loops = any(
            isinstance(above, ast.For | ast.While)
            for call in self.methods("backward")
            for above, _ in self.above(call)
        )
        steps = loops and any(self.methods("step"))
        return steps and self._is_started and not self.is_distributed and not self._is_spread

    @cached_property
    def _is_started(self) -> bool:
        """Whether the file does something when it is run, unlike a module of a library."""
        own = (name for name, call in self.calls if self.function_of(call) is None)
        main = any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(self.tree))
        return main or any(name in self.functions for name in own) or self._trains_at_top

    @cached_property
    def _trains_at_top(self) -> bool:
        return any(self.function_of(call) is None for call in self.methods("backward"))

    @cached_property
    def _is_spread(self) -> bool:
        modules = (part for full in self.aliases.values() for part in full.split("."))
        return any(SPREAD.fullmatch(word) for word in (*modules, *words(self.tree)))

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield each enclosing node with the child of it that leads to `node`, innermost first."""
        while node in self._parents:
            parent = self._parents[node]
            yield parent, node
            node = parent

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the function that a node is in."""
        return next((above for above, _ in self.above(node) if isinstance(above, Function)), None)

    def first_rank_test(self, node: ast.AST) -> ast.If | ast.IfExp | None:
        """Return the `if` that lets only some ranks come to a node; None if all do.

        `if rank == 0:` around it counts, and `if rank != 0: return` before it.
        """
        for above, below in self.above(node):
            if (
                isinstance(above, ast.If | ast.IfExp)
                and below is not above.test
                and self._asks(above.test)
            ):
                return above
            for before in _statements_before(above, below):
                if isinstance(before, ast.If) and self._asks(before.test) and _leaves(before):
                    return before
        return None

    def enclosing_rank_test(self, node: ast.AST, outermost: ast.AST) -> ast.If | None:
        """Return the `if` inside of `outermost` and around a node that asks for the rank."""
        for above, _ in self.above(node):
            if above is outermost:
                return None
            if isinstance(above, ast.If) and self._asks(above.test):
                return above
        return None

    def is_for_one_process(self, node: ast.AST) -> bool:
        """Return whether a test around a node lets no one come to it where there are several."""
        for above, below in self.above(node):
            if isinstance(above, ast.If | ast.IfExp) and below is not above.test:
                other = above.orelse if isinstance(above.orelse, list) else [above.orelse]
                several = asks_for_several(above.test)
                if several is not None and several is (below in other):
                    return True
        return False

    def asks_for_wrapper(self, node: ast.AST) -> bool:
        """Return whether a test around a node asks if the model is wrapped, or for its type."""
        tests = (
            above.test for above, _ in self.above(node) if isinstance(above, ast.If | ast.IfExp)
        )
        return any(WRAPPER_TEST.search(word) for test in tests for word in words(test))

    def _asks(self, test: ast.expr) -> bool:
        return asks_for_rank(test, self._told_ranks)

    @cached_property
    def _told_ranks(self) -> frozenset[str]:
        """Names given what a test of the rank says: `args.save_logs = is_master(args) and ...`."""
        values = (node for node in ast.walk(self.tree) if isinstance(node, ast.Assign))
        told = (
            node.targets for node in values if is_test(node.value) and asks_for_rank(node.value)
        )
        return frozenset(ast.unparse(t).rpartition(".")[2] for targets in told for t in targets)

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The script's own functions by name, methods not among them."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def is_guarded(self, node: ast.AST) -> bool:
        """Return whether only some ranks come to a node, by its own tests, by a `with` that lets
        one go first, or by the tests of all callers of its function."""
        if self.first_rank_test(node) is not None or self._goes_first(node):
            return True
        function = self.function_of(node)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        callers = [c for n, c in self.calls if self._is_own(n, function.name)]
        return bool(callers) and all(self.first_rank_test(caller) is not None for caller in callers)

    def _goes_first(self, node: ast.AST) -> bool:
        """`with main_process_first():` and the like."""
        contexts = (above for above, _ in self.above(node) if isinstance(above, ast.With))
        items = (item.context_expr for context in contexts for item in context.items)
        return any(re.search("first", word) for item in items for word in words(item))

    def _is_own(self, called: str, name: str) -> bool:
        """Whether a call may be of the script's own function: of no imported thing's."""
        imported = (f"{full}." for full in self.aliases.values())
        return called.rpartition(".")[2] == name and not called.startswith(tuple(imported))

    def wrapped(self, *wrappers: str) -> dict[str, ast.Call]:
        """Return the names of variables that hold what these wrappers made, as `self.model`."""
        found: dict[str, ast.Call] = {}
        for node in ast.walk(self.tree):
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Call) and self.name(value.func) in wrappers:
                assert isinstance(node, ast.Assign)
                found |= {ast.unparse(target): value for target in node.targets}
        return found


def read_script(text: str, file: str) -> Script:
    """Return a parsed script. Raises FaultsError where the text is no Python."""
    try:
        with warnings.catch_warnings():  # such as of invalid escapes: nothing of ours
            warnings.simplefilter("ignore")
            return Script(text, file, ast.parse(text))
    except SyntaxError as error:
        place = Position(error.lineno or 1, error.offset or 1)
        message = f"no Python: {error.msg}"
        raise FaultsError(
            [Fault(file, place, "", message, "mend it first", error.text or "")]
        ) from None
    except (ValueError, RecursionError) as error:  # a NUL byte; nested beyond all measure
        raise FaultsError([Fault(file, None, "", f"no Python: {error}", "mend it first")]) from None


# Names that mean the same thing.
_SAME = {
    "torch.nn.parallel.distributed.DistributedDataParallel": DDP,
    "nn.parallel.DistributedDataParallel": DDP,
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": FSDP,
    "torch.distributed._composable.fsdp.fully_shard": SHARD,
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.utils.data.dataset.random_split": "torch.utils.data.random_split",
}


def _short(name: str) -> str:
    return _SAME.get(name, name)


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], ast.Return | ast.Continue | ast.Raise)


def _statements_before(above: ast.AST, below: ast.AST) -> list[ast.stmt]:
    """Return the statements of the block of `above` that stand before `below`."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(above, field, None)
        if isinstance(block, list) and below in block:
            return block[: block.index(below)]
    return []
