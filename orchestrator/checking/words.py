"""What an expression says by itself: its literals, its names, whether it asks for the rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Names of the rank of a process, and not of a matrix or of LoRA.
RANK = re.compile(
    r"_*((get|my|this|cur|current|the|is|its|slurm|ompi|comm|mpi|pmi)_)*"
    r"((local|global|world|node|dist|distributed|ddp|dp|data|parallel|proc|process|group|torch|host"
    r"|machine|worker|device|gpu)_?)*rank(_?(zero|0|id|idx|index|num))?|slurm_(procid|localid)",
    re.IGNORECASE)  # fmt: skip
# Names by which scripts ask whether they are the first rank.
MAIN = re.compile(
    r"main_process|is_main|is_master|master_process|is_primary|is_chief|should_save|is_zero|is_root"
    r"|primary|rank_?zero|rank_?0|global_zero", re.IGNORECASE)  # fmt: skip
# Names that may do so: enough to say nothing of a file that is written behind them.
PERHAPS = re.compile(r"^(main|master|leader|coordinator)|is_(lead|coord|writer|log)", re.IGNORECASE)
# Names that do so if they are compared with 0.
NUMBERED = re.compile(
    r"^(gpu|local|proc(ess)?|device)(_?(id|index|idx|num(ber)?))?$|^pid$", re.IGNORECASE
)
# Names that say whether there are several ranks at all.
SEVERAL = re.compile(
    r"distribut|^(is_)?ddp$|^use_ddp|fsdp|is_initialized|multi_?gpu", re.IGNORECASE
)
# The same by comparison, and whether it is true where there are several.
WHERE_SEVERAL = {
    (ast.NotEq, -1): True, (ast.Gt, -1): True, (ast.Eq, -1): False,
    (ast.GtE, 0): True, (ast.Lt, 0): False, (ast.Gt, 1): True, (ast.NotEq, 1): True,
    (ast.Eq, 1): False, (ast.LtE, 1): False, (ast.IsNot, None): True, (ast.Is, None): False,
}  # fmt: skip
NUMBERS = re.compile(
    r"rank|world|distribut|(num|n)_?gpus?$|^gpus$|(gpu|device)_count", re.IGNORECASE
)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, None if it is not given."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return the value of an argument that is given by name or by place, from 0."""
    return keyword(call, name) or (call.args[place] if len(call.args) > place else None)


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal, also of -1; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int) else None
    return node.value if isinstance(node, ast.Constant) else None


def constants(node: ast.AST) -> set[object]:
    """Return all literals in an expression that can be compared."""
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}


def words(node: ast.AST) -> Iterator[str]:
    """Yield all names, attributes, parameters and texts in a part of a script."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def is_rank(word: str) -> bool:
    """Whether a word names the rank of a process."""
    return RANK.fullmatch(word) is not None


def asks_for_rank(test: ast.expr, names: frozenset[str] = frozenset(), loose: bool = False) -> bool:
    """Return whether a test is true on some ranks only, as far as its words say.

    Args:
        test: the expression.
        names: what else tells the rank.
        loose: also where that is likely, but not sure.
    """
    if isinstance(test, ast.BoolOp):
        return any(asks_for_rank(value, names, loose) for value in test.values)
    if asks_for_several(test) is not None:
        return False
    found = set(words(test))
    if any(map(MAIN.search, found)) or (found & names and not _is_bound(test)):
        return True
    if any(map(NUMBERED.search, found)) and _is_zero(test, loose):
        return True
    if loose and any(map(PERHAPS.search, found)):
        return True
    return any(map(is_rank, found)) and (loose or not _is_bound(test))


def _is_bound(test: ast.expr) -> bool:
    """Whether a number is only compared with another variable: `rank >= world_size`."""
    if not isinstance(test, ast.Compare):
        return False
    sides = [test.left, *test.comparators]
    if any(isinstance(constant(side), int | str) for side in sides):
        return False
    if isinstance(test.ops[0], ast.In | ast.NotIn):
        return not isinstance(test.comparators[0], ast.Tuple | ast.List | ast.Set)
    return not any(w in ("src", "dst", "root", "main", "master") for s in sides for w in words(s))


def _is_zero(test: ast.expr, loose: bool) -> bool:
    """Whether a test is `... == 0` or `... != 0`; loosely `not ...` too."""
    if isinstance(test, ast.Compare):
        value = constant(test.comparators[0])
        return isinstance(test.ops[0], ast.Eq | ast.NotEq) and value in (0, "0")
    return loose and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def on_first(test: ast.expr) -> bool | None:
    """Return whether a test of the rank is true on rank 0; None where that is not plain."""
    if isinstance(test, ast.BoolOp):
        asked = [value for value in test.values if asks_for_rank(value)]
        return on_first(asked[0]) if asked else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = on_first(test.operand)
        return None if answer is None else not answer
    if not isinstance(test, ast.Compare):
        found = set(words(test))
        return True if any(map(MAIN.search, found)) else False if any(map(is_rank, found)) else None
    value = constant(test.comparators[0] if constant(test.left) is None else test.left)
    if value in (0, "0") and isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt):
        return isinstance(test.ops[0], ast.Eq)
    if isinstance(test.ops[0], ast.In | ast.NotIn):
        return (0 in constants(test.comparators[0])) is isinstance(test.ops[0], ast.In)
    return None


def asks_for_several(test: ast.expr) -> bool | None:
    """Return True for a test that is true where there are several ranks at all, False for one that
    is true where there is one process alone, None for any other."""
    if isinstance(test, ast.BoolOp):
        found = {asks_for_several(value) for value in test.values}
        if isinstance(test.op, ast.Or):  # as `not distributed or rank == 0`
            return found.pop() if len(found) == 1 else None
        return False if False in found else True if True in found else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = asks_for_several(test.operand)
        return None if answer is None else not answer
    if isinstance(test, ast.Compare):
        return _compares_for_several(test)
    return True if _is_variable(test) or any(map(SEVERAL.search, words(test))) else None


def _is_variable(test: ast.expr) -> bool:
    """`os.environ.get("RANK")`, which is the text "0" on the first rank: true."""
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Attribute):
        return False
    return test.func.attr in ("get", "getenv") and any(map(is_rank, words(test)))


def _compares_for_several(test: ast.Compare) -> bool | None:
    """`rank != -1`, `rank >= 0`, `world_size > 1`, `"RANK" in ...`, `rank is not None`; or the
    other way round."""
    how = type(test.ops[0])
    found = set(words(test))
    if not any(map(NUMBERS.search, found)):
        return None
    if how in (ast.In, ast.NotIn):
        return how is ast.In if isinstance(test.left, ast.Constant) else None
    other = test.comparators[0]
    value = constant(other)
    if value is None and not (isinstance(other, ast.Constant)):
        return None
    if value == 1 and any(map(is_rank, found)):  # `rank == 1` is a rank of several
        return None
    return WHERE_SEVERAL.get((how, value)) if isinstance(value, int | None) else None


def is_test(value: ast.expr) -> bool:
    """Return whether an expression is true or false by its form."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "bool"
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.BitAnd | ast.BitOr)
    return isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )
