"""What the rules want to know of a script: which ranks come where."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import cached_property

from orchestrator.checking import words as says
from orchestrator.checking.tree import DDP, FSDP, SHARD, Tree, choices, last, path
from orchestrator.checking.words import asks_for_several, is_test, words
from orchestrator.errors import Fault, FaultsError, Position

__all__ = ["DDP", "FSDP", "SHARD", "Script", "path", "read_script"]

# Names in tests of whether a model is wrapped at all.
WRAPPER_TEST = re.compile(
    r"^(isinstance|hasattr|getattr|type|module)$|ddp|fsdp|distribut|parallel|world|wrapped|multi",
    re.IGNORECASE,
)
# Decorators that let only one rank come to a function.
ONE_RANK = re.compile(
    r"rank_?(zero|0)|main_?(process|only|rank)|master|primary|_only", re.IGNORECASE
)
WAITS = re.compile(r"barrier|wait_for|synchronize", re.IGNORECASE)
# Functions of which each rank gets the same answer.
TELLS_ALL = re.compile(r"broadcast|all_reduce|all_gather|scatter|sync", re.IGNORECASE)
RANKS = re.compile(r"\brank\b|local_?rank|global_?rank|get_rank", re.IGNORECASE)
EXITS = ("exit", "quit", "sys.exit", "os._exit")
MAX_CALLERS = 4  # how far up a guard is looked for
NO_TEST = ast.Pass()  # what `_guards` keeps where there is none


class Script(Tree):
    """A parsed script and its tests of the rank."""

    @cached_property
    def _guards(self) -> dict[tuple[ast.AST, bool], ast.AST]:
        return {}

    def first_rank_test(self, node: ast.AST, loose: bool = False) -> ast.AST | None:
        """Return what lets only some ranks come to a node; None if all do.

        `if rank == 0:` around it counts, `rank == 0 and ...`, a `case` of the rank, and before it
        `if rank != 0: return` or `assert rank == 0`.

        Args:
            node: the place.
            loose: count too what may be such a test.
        """
        climbed: list[ast.AST] = []
        found: ast.AST = NO_TEST
        for above, below in self.above(node):
            if (below, loose) in self._guards:
                found = self._guards[below, loose]
                break
            climbed.append(below)
            if test := self._test_between(above, below, loose):
                found = test
                break
        self._guards.update({(below, loose): found for below in climbed})
        return None if found is NO_TEST else found

    def _test_between(self, above: ast.AST, below: ast.AST, loose: bool) -> ast.AST | None:
        if isinstance(above, ast.If | ast.IfExp | ast.While) and below is not above.test:
            if self._asks(above.test, loose):
                return above
        elif isinstance(above, ast.BoolOp):
            before = above.values[: above.values.index(below)]  # type: ignore[arg-type]
            if any(self._asks(value, loose) for value in before):
                return above
        elif isinstance(above, ast.Match) and self._asks(above.subject, loose):
            return above if below is not above.subject else None
        return next((s for s in self._leaving(above, below) if self._asks(s.test, loose)), None)

    def _leaving(self, above: ast.AST, below: ast.AST) -> Iterator[ast.If | ast.Assert]:
        """Yield the tests of the block of `above`, before `below`, behind which one leaves it."""
        block, place = self._spots.get(below, ([], 0))
        for index in self._leavers.get(id(block), ()):
            if index >= place:
                return
            statement = block[index]
            assert isinstance(statement, ast.If | ast.Assert)
            yield statement

    @cached_property
    def _spots(self) -> dict[ast.AST, tuple[list[ast.stmt], int]]:
        """The block of each statement and its place in that."""
        return {
            statement: (block, index)
            for block in self._blocks
            for index, statement in enumerate(block)
        }

    @cached_property
    def _blocks(self) -> list[list[ast.stmt]]:
        fields = (getattr(n, f, None) for n in self.nodes for f in ("body", "orelse", "finalbody"))
        return [block for block in fields if isinstance(block, list)]

    @cached_property
    def _leavers(self) -> dict[int, list[int]]:
        return {
            id(block): [i for i, statement in enumerate(block) if self.leaves(statement)]
            for block in self._blocks
        }

    def leaves(self, statement: ast.stmt) -> bool:
        """Return whether behind a test of the rank only those go on that pass it."""
        if not isinstance(statement, ast.If):
            return isinstance(statement, ast.Assert)
        end = statement.body[-1]
        return self.exits(end) or isinstance(end, ast.Return | ast.Continue | ast.Raise | ast.Break)

    def exits(self, node: ast.AST) -> bool:
        """Return whether a statement ends the process."""
        value = node.value if isinstance(node, ast.Expr) else None
        return isinstance(value, ast.Call) and self.name(value.func) in EXITS

    def beside(self, node: ast.AST) -> list[ast.stmt]:
        """Return the statements of the block that a statement is in."""
        return self._spots.get(node, ([], 0))[0]

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
                several = self._several(above.test)
                if several is not None and several is (below in other):
                    return True
        return False

    def asks_for_wrapper(self, node: ast.AST) -> bool:
        """Return whether a test around a node asks if the model is wrapped, or for its type, or
        the node is what is tried, or done instead, where an attribute is missing."""
        for above, _ in self.above(node):
            if isinstance(above, ast.If | ast.IfExp):
                if any(WRAPPER_TEST.search(word) for word in words(above.test)):
                    return True
            elif isinstance(above, ast.Try):
                types = [handler.type for handler in above.handlers if handler.type]
                if any("AttributeError" in words(kind) for kind in types):
                    return True
        return False

    def _several(self, test: ast.expr) -> bool | None:
        if test not in self._several_asked:
            self._several_asked[test] = asks_for_several(test)
        return self._several_asked[test]

    @cached_property
    def _several_asked(self) -> dict[ast.expr, bool | None]:
        return {}

    def _asks(self, test: ast.expr, loose: bool = False) -> bool:
        key = (test, loose)
        if key not in self._asked:
            names = self._told_perhaps if loose else self._told
            self._asked[key] = says.asks_for_rank(test, names, loose)
        return self._asked[key]

    @cached_property
    def _asked(self) -> dict[tuple[ast.expr, bool], bool]:
        return {}

    @cached_property
    def _told_perhaps(self) -> frozenset[str]:
        """Names given what a test of the rank says, in one place at least: `args.save_logs =
        is_master(args) and ...`; names of ranks, and of functions that give them back."""
        tests = {last(name) for name, given in self.given.items() if any(map(self._tells, given))}
        return frozenset(tests) | self._own_ranks | self._telling_functions

    @cached_property
    def _told(self) -> frozenset[str]:
        """The same for names that are never given anything else, and that no rank is told by
        another."""
        tests: dict[str, bool] = {}
        for name, given in self.given.items():
            tests[last(name)] = tests.get(last(name), True) and all(map(self._tells, given))
        shared = {
            word
            for name, call in self.calls
            if TELLS_ALL.search(last(name))
            for argument in call.args
            for word in words(argument)
        }
        sure = {name for name, always in tests.items() if always} - shared
        return frozenset(sure) | self._own_ranks | self._telling_functions

    def _tells(self, value: ast.expr) -> bool:
        parts = choices(value)
        return any(
            is_test(part) and says.asks_for_rank(part, self._own_ranks) for part in parts
        ) and all(is_test(part) or isinstance(part, ast.Constant) for part in parts)

    @cached_property
    def _own_ranks(self) -> frozenset[str]:
        """Names of variables that are a rank: `me = dist.get_rank()`, and `init_process_group(...,
        rank=me)`."""
        found = {
            last(name)
            for name, given in self.given.items()
            if all(self._is_rank(part) for value in given for part in choices(value))
        }
        for call in self.methods("init_process_group"):
            found.add(last(path(says.keyword(call, "rank") or call)))
        return frozenset(found - {""})

    def _is_rank(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call) and path(value.func) == "int":
            return bool(value.args) and self._is_rank(value.args[0])
        if isinstance(value, ast.Call):
            name = last(self.name(value.func))
            texts = value.args[:1] if name in ("get", "getenv") else []
            return says.is_rank(name) or any(says.is_rank(str(says.constant(t))) for t in texts)
        return isinstance(value, ast.Subscript) and says.is_rank(str(says.constant(value.slice)))

    @cached_property
    def _telling_functions(self) -> frozenset[str]:
        """The script's own functions that give back nothing but a test of the rank."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
                value = node.body[-1].value
                if value is not None and len(node.body) <= 2 and self._tells(value):
                    found.add(node.name)
        return frozenset(found)

    def tells_rank(self, node: ast.AST) -> bool:
        """Return whether an expression, or what its variables are made of, holds the rank."""
        own = self._own_ranks
        return any(RANKS.search(word) or word in own for word in self.made_of(node))

    def is_guarded(self, node: ast.AST, callers: int = MAX_CALLERS) -> bool:
        """Return whether only some ranks may come to a node, by its own tests, by what lets one go
        first, by a decorator, or by the tests of all callers of its function."""
        if self.first_rank_test(node, loose=True) is not None or self._goes_first(node):
            return True
        function = self.function_of(node)
        while isinstance(function, ast.Lambda):
            function = self.function_of(function)
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if any(ONE_RANK.search(w) for d in function.decorator_list for w in words(d)):
            return True
        called = self.callers(function.name) if callers else []
        return bool(called) and all(self.is_guarded(caller, callers - 1) for caller in called[:50])

    def _goes_first(self, node: ast.AST) -> bool:
        """`with main_process_first():` and the like, and `if rank != 0: barrier()` before it."""
        for above, below in self.above(node):
            if isinstance(above, ast.With):
                items = (word for item in above.items for word in words(item.context_expr))
                if any(re.search("first", word) for word in items):
                    return True
            block, place = self._spots.get(below, ([], 0))
            before = (s for s in block[max(0, place - 10) : place] if isinstance(s, ast.If))
            if any(self._asks(s.test, True) and self._waits(s) for s in before):
                return True
        return False

    def _waits(self, branch: ast.If) -> bool:
        return any(WAITS.search(word) for line in branch.body for word in words(line))


def read_script(text: str, file: str) -> Script:
    """Return a parsed script. Raises FaultsError where the text is no Python."""
    if file.endswith(".ipynb") or (text.lstrip()[:1] == "{" and '"nbformat"' in text):
        fix = f"export it first: jupyter nbconvert --to script {file}"
        raise FaultsError([Fault(file, None, "", "a notebook, and no Python script", fix)])
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
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested too deeply
        words_of = str(error) or "nested too deeply"
        raise FaultsError(
            [Fault(file, None, "", f"no Python: {words_of}", "mend it first")]
        ) from None
