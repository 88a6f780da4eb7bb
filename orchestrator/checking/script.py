"""What the rules want to know of a script: full names, what encloses what, what is guarded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from orchestrator.errors import Fault, FaultsError, Position

# What makes a script one of several processes.
SETUP = re.compile(
    r"(torch\.distributed\.)?(init_process_group|init_device_mesh)"
    r"|torch\.nn\.parallel\.DistributedDataParallel|torch\.distributed\.fsdp\..*"
)
DDP = "torch.nn.parallel.DistributedDataParallel"
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
SHARD = "torch.distributed.fsdp.fully_shard"
# Words of scripts that several processes run, whoever sets them up.
SPREAD = re.compile(
    r"ranks?|(local|world|global)_?(rank|size)|distributed|ddp|fsdp|accelerat(e|or)|deepspeed|horovod"
    r"|hvd|lightning|pytorch_lightning|ignite|ray|colossalai|megatron|torch_xla|xm|idist|trainer"
    r"|get_rank|is_main_process|dataparallel", re.IGNORECASE)  # fmt: skip
# Names by which scripts ask whether they are the first rank.
FIRST_RANK = re.compile(
    r"rank|main_process|is_main|is_master|master_process|is_primary|is_chief|should_save|is_zero"
    r"|is_root|primary", re.IGNORECASE)  # fmt: skip

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
        steps = any(self.methods("backward")) and any(self.methods("step"))
        return steps and not self.is_distributed and not self._is_spread

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
                and _asks(above.test)
            ):
                return above
            for before in _statements_before(above, below):
                if isinstance(before, ast.If) and _asks(before.test) and _leaves(before):
                    return before
        return None

    def is_guarded(self, node: ast.AST) -> bool:
        """Return whether only some ranks come to a node, by its own tests or those of all callers
        of its function."""
        if self.first_rank_test(node) is not None:
            return True
        function = self.function_of(node)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        callers = [c for n, c in self.calls if self._is_own(n, function.name)]
        return bool(callers) and all(self.first_rank_test(caller) is not None for caller in callers)

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


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, None if it is not given."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def words(node: ast.AST) -> Iterator[str]:
    """Yield all names and attributes in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def read_script(text: str, file: str) -> Script:
    """Return a parsed script. Raises FaultsError where the text is no Python."""
    try:
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


def _asks(test: ast.expr) -> bool:
    """Whether a test is true on some ranks only. `rank != -1` asks for several ranks at all."""
    if isinstance(test, ast.BoolOp):
        return any(_asks(value) for value in test.values)
    compared = test.comparators if isinstance(test, ast.Compare) else []
    if any(ast.unparse(value) == "-1" for value in compared):
        return False
    return any(FIRST_RANK.search(word) for word in words(test))


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], ast.Return | ast.Continue | ast.Raise)


def _statements_before(above: ast.AST, below: ast.AST) -> list[ast.stmt]:
    """Return the statements of the block of `above` that stand before `below`."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(above, field, None)
        if isinstance(block, list) and below in block:
            return block[: block.index(below)]
    return []
