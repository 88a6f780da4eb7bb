"""errors: what a fault looks like, and that the drawn tree is the real one."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.errors import Fault, FaultsError, Position, UserError, quoted


def test_a_fault_shows_place_line_caret_and_fix() -> None:
    fault = Fault(
        "job.yaml",
        Position(7, 3),
        "resources.gpus_per_nod",
        "unknown key",
        'did you mean "gpus_per_node"?',
        "  gpus_per_nod: 2",
    )
    assert fault.render() == (
        "job.yaml:7:3 resources.gpus_per_nod: unknown key\n"
        "      gpus_per_nod: 2\n"
        "      ^\n"
        '  fix: did you mean "gpus_per_node"?'
    )


def test_a_fault_without_place_or_fix_is_one_line() -> None:
    assert Fault("job.yaml", None, "", "the file is empty").render() == (
        "job.yaml: the file is empty"
    )


@pytest.mark.parametrize(
    ("before", "width"),
    [("abc ", 4), ("\t", 1), ("日本", 4), ("e\u0301", 1), ("", 0)],
)
def test_the_caret_stands_under_its_character(before: str, width: int) -> None:
    line = f"{before}X"
    shown, caret = _excerpt(Fault("f", Position(1, len(before) + 1), "", "m", "", line))
    assert caret.index("^") == width
    assert shown.endswith("X")


def _excerpt(fault: Fault) -> tuple[str, str]:
    _, shown, caret = fault.render().split("\n")
    return shown[4:], caret[4:]


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_long_lines_are_cut_around_the_caret(column: int) -> None:
    line = "." * (column - 1) + "X" + "." * (5000 - column)
    shown, caret = _excerpt(Fault("f", Position(1, column), "", "m", "", line))
    assert len(shown) < 120
    assert shown[caret.index("^")] == "X"


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\n")))
def test_nothing_in_a_fault_can_steer_the_terminal(text: str) -> None:
    rendered = Fault("f", Position(1, 1), text, text, text, text).render()
    assert all(line.isprintable() for line in rendered.split("\n"))


def test_all_faults_come_with_their_number() -> None:
    one, two = Fault("a", None, "", "x"), Fault("b", None, "", "y")
    assert str(FaultsError([one, two])) == "a: x\nb: y\n2 faults"
    assert str(FaultsError([one])) == "a: x\n1 fault"
    assert FaultsError([one]).exit_code == 2


def test_a_fault_as_data() -> None:
    fault = Fault("f", Position(2, 3), "k", "m", "x", "line")
    assert fault.as_dict() == {
        "file": "f",
        "line": 2,
        "column": 3,
        "key": "k",
        "message": "m",
        "fix": "x",
    }


def test_the_tree_in_the_text_is_the_tree_of_classes() -> None:
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__ or ""))
    classes = {n for n, c in inspect.getmembers(errors, inspect.isclass) if n.endswith("Error")}
    assert drawn == classes
    assert classes <= set(errors.__all__)
    assert issubclass(FaultsError, UserError)


def test_values_are_quoted_and_cut() -> None:
    assert quoted("a") == '"a"'
    assert quoted("a" * 50) == '"' + "a" * 37 + '..."'
