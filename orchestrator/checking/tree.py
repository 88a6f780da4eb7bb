"""A parsed script: full names, what encloses what, what variables are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

from orchestrator.checking.words import words

DDP = "torch.nn.parallel.DistributedDataParallel"
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
SHARD = "torch.distributed.fsdp.fully_shard"
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Scope: TypeAlias = ast.AST
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAX_STEPS = 3  # from a variable to what it was made of

# Names that mean the same thing.
_SAME = {
    "torch.nn.parallel.distributed.DistributedDataParallel": DDP,
    "nn.parallel.DistributedDataParallel": DDP,
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": FSDP,
    "torch.distributed._composable.fsdp.fully_shard": SHARD,
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.utils.data.dataset.random_split": "torch.utils.data.random_split",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
}


def path(node: ast.AST) -> str:
    """Return `self.model` for such an expression, "" for one that is no dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


class Tree:
    """A parsed script.

    Args:
        text: as it was read.
        file: its name, for findings.
        tree: of the whole.
    """

    def __init__(self, text: str, file: str, tree: ast.Module) -> None:
        self.file, self.tree = file, tree
        # Only these end a line for Python, unlike for str.splitlines.
        self._lines = re.split(r"\r\n|\r|\n", text)
        self.nodes = list(ast.walk(tree))
        self._parents: dict[ast.AST, ast.AST] = {}
        self._functions: dict[ast.AST, ast.AST | None] = {tree: None}
        self._classes: dict[ast.AST, ast.ClassDef | None] = {tree: None}
        for node in self.nodes:  # enclosing ones come first
            function = node if isinstance(node, Function) else self._functions[node]
            owner = node if isinstance(node, ast.ClassDef) else self._classes[node]
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node
                self._functions[child], self._classes[child] = function, owner

    def line(self, number: int) -> str:
        """Return a line by its number, from 1."""
        return self._lines[number - 1] if number <= len(self._lines) else ""

    def column(self, line: int, offset_bytes: int) -> int:
        """Return the column in characters, from 1; the tree counts bytes of UTF-8."""
        return len(self.line(line).encode()[:offset_bytes].decode("utf-8", "ignore")) + 1

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What imported names stand for: `DDP` for torch.nn.parallel.DistributedDataParallel."""
        found = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    first = name.name.partition(".")[0]
                    found[name.asname or first] = name.name if name.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    found[name.asname or name.name] = f"{node.module}.{name.name}"
        return found

    def name(self, node: ast.AST) -> str:
        """Return the full dotted name of an expression, "" where it has none."""
        first, dot, rest = path(node).partition(".")
        full = f"{self.aliases.get(first, first)}{dot}{rest}"
        return _SAME.get(full, full)

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Every call with the full name of what is called, in the order of the text."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        return [(self.name(call.func), call) for call in calls]

    @cached_property
    def _by_name(self) -> dict[str, list[ast.Call]]:
        return _grouped(self.calls)

    @cached_property
    def _by_last(self) -> dict[str, list[tuple[str, ast.Call]]]:
        found: dict[str, list[tuple[str, ast.Call]]] = {}
        for name, call in self.calls:
            own = call.func.attr if isinstance(call.func, ast.Attribute) else last(name)
            found.setdefault(own, []).append((name, call))
        return found

    def called(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of functions by full name."""
        return (call for name in names for call in self._by_name.get(name, ()))

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of methods by their last name, of whatever object."""
        for name in names:
            for _, call in self._by_last.get(name, ()):
                if isinstance(call.func, ast.Attribute):
                    yield call

    def callers(self, name: str) -> list[ast.Call]:
        """Return the calls that may be of the script's own function: of no imported thing's."""
        imported = tuple(f"{full}." for full in self.aliases.values())
        found = self._by_last.get(name, ())
        return [call for full, call in found if not full.startswith(imported)]

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield each enclosing node with the child of it that leads to `node`, innermost first."""
        while node in self._parents:
            parent = self._parents[node]
            yield parent, node
            node = parent

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """Return the function that a node is in."""
        return self._functions[node]

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class that a node is in."""
        return self._classes[node]

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The script's own functions by name, methods not among them."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def values(self) -> list[tuple[ast.expr, ast.expr]]:
        """What is assigned, as pairs of a target and a value, `with ... as` among them."""
        found: list[tuple[ast.expr, ast.expr]] = []
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found += _pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                found.append((node.target, node.value))
            elif isinstance(node, ast.withitem) and node.optional_vars:
                found.append((node.optional_vars, node.context_expr))
        return found

    @cached_property
    def given(self) -> dict[str, list[ast.expr]]:
        """What each variable is given anywhere, by its dotted name."""
        found: dict[str, list[ast.expr]] = {}
        for target, value in self.values:
            if path(target):
                found.setdefault(path(target), []).append(value)
        return found

    def made_of(self, node: ast.AST, steps: int = MAX_STEPS) -> set[str]:
        """Return the words of an expression and of what its variables were given."""
        found = set(words(node))
        front = {path(part) for part in ast.walk(node)} & self.given.keys()
        seen = set(front)
        for _ in range(steps):
            made = [value for name in front for value in self.given[name]]
            for value in made:
                found.update(words(value))
            reached = {path(part) for value in made for part in ast.walk(value)}
            front = (reached & self.given.keys()) - seen
            seen |= front
        return found

    @cached_property
    def _bound(self) -> dict[ast.AST | None, set[str]]:
        """Names that a function has for itself: parameters, and what it assigns."""
        found: dict[ast.AST | None, set[str]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                arguments = (part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg))
                found.setdefault(node, set()).update(arguments)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(self._functions[node], set()).add(node.id)
        for node in self.nodes:
            if isinstance(node, ast.Global | ast.Nonlocal):
                found.get(self._functions[node], set()).difference_update(node.names)
        return found

    def scope(self, node: ast.AST) -> Scope:
        """Return what the variable of an expression belongs to: a function, a class for `self.x`,
        the script, or a comprehension."""
        first = path(node).partition(".")[0]
        if first == "self":
            return self.class_of(node) or self.tree
        for above, _ in self.above(node):
            if isinstance(above, Function) and first in self._bound.get(above, ()):
                return above
            if isinstance(above, COMPREHENSIONS) and first in _targets(above):
                return above
        return self.tree

    def wrapped(self, *wrappers: str) -> dict[tuple[str, Scope], ast.Call]:
        """Return the variables that hold what these wrappers made, as `self.model` in a class."""
        found: dict[tuple[str, Scope], ast.Call] = {}
        for target, value in self.values:
            for part in choices(value):
                if isinstance(part, ast.Call) and self.name(part.func) in wrappers:
                    found[path(target), self.scope(target)] = part
        return found

    def sharded(self) -> set[tuple[str, Scope]]:
        """Return the variables that hold models in parts."""
        given = (call.args[0] for call in self.called(SHARD) if call.args)
        return {(path(node), self.scope(node)) for node in given} | self.wrapped(FSDP, SHARD).keys()

    def variable(self, node: ast.AST) -> tuple[str, Scope]:
        """Return an expression's dotted name and scope, to look up in `wrapped`."""
        return path(node), self.scope(node)


def choices(value: ast.expr) -> list[ast.expr]:
    """Return both values of `a if test else b`, and any other one by itself."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]


def _grouped(calls: list[tuple[str, ast.Call]]) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for name, call in calls:
        found.setdefault(name, []).append(call)
    return found


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return `a, b = 1, 2` as two assignments."""
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            return list(zip(target.elts, value.elts, strict=True))
        return [(part, value) for part in target.elts]
    return [(target, value)]


def _targets(node: ast.AST) -> set[str]:
    generators = getattr(node, "generators", [])
    return {name for part in generators for name in words(part.target)}
