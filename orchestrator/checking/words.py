"""What an expression says by itself: its literals, its names, whether it asks for the rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Names by which scripts ask whether they are the first rank.
FIRST_RANK = re.compile(
    r"rank(?!s)|main_process|is_main|is_master|master_process|is_primary|is_chief|should_save|is_zero"
    r"|is_root|primary", re.IGNORECASE)  # fmt: skip


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, None if it is not given."""
    return next((k.value for k in call.keywords if k.arg == name), None)


# Names that do so if they are compared with 0, or if `not` stands before them.
NUMBERED = re.compile(
    r"^(gpu|local|proc(ess)?|device|worker)(_?(id|index|idx|num(ber)?))?$", re.IGNORECASE
)
# Names that say whether there are several ranks at all.
SEVERAL = re.compile(
    r"distribut|^(is_)?ddp$|^use_ddp|fsdp|is_initialized|multi_?gpu", re.IGNORECASE
)
# The same by comparison, and whether it is true where there are several.
WHERE_SEVERAL = {
    (ast.NotEq, "-1"): True, (ast.Gt, "-1"): True, (ast.Eq, "-1"): False,
    (ast.GtE, "0"): True, (ast.Lt, "0"): False, (ast.Gt, "1"): True, (ast.NotEq, "1"): True,
    (ast.Eq, "1"): False, (ast.LtE, "1"): False, (ast.IsNot, "None"): True, (ast.Is, "None"): False,
}  # fmt: skip


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal; None for anything else."""
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


def asks_for_rank(test: ast.expr, names: frozenset[str] = frozenset()) -> bool:
    """Return whether a test is true on some ranks only, as far as its words say.

    Args:
        test: the expression.
        names: what else than FIRST_RANK tells the rank.
    """
    if isinstance(test, ast.BoolOp):
        return any(asks_for_rank(value, names) for value in test.values)
    if asks_for_several(test) is not None:
        return False
    found = set(words(test))
    if _is_zero(test) and any(map(NUMBERED.search, found)):
        return True
    return bool(found & names) or any(map(FIRST_RANK.search, found))


def _is_zero(test: ast.expr) -> bool:
    """Whether a test is `... == 0`, `... != 0` or `not ...`."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.Eq | ast.NotEq) and constant(test.comparators[0]) == 0
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


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
    return True if any(map(SEVERAL.search, words(test))) else None


def _compares_for_several(test: ast.Compare) -> bool | None:
    """`rank != -1`, `rank >= 0`, `world_size > 1`, `"RANK" in ...`, `rank is not None`; or the
    other way round."""
    how = type(test.ops[0])
    value, left = ast.unparse(test.comparators[0]), set(words(test))
    if not any(map(re.compile("rank|world|num_gpus|distribut", re.IGNORECASE).search, left)):
        return None
    if how in (ast.In, ast.NotIn):
        return how is ast.In if isinstance(test.left, ast.Constant) else None
    return WHERE_SEVERAL.get((how, value))


def is_test(value: ast.expr) -> bool:
    """Return whether an expression is true or false by its form."""
    return isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )
