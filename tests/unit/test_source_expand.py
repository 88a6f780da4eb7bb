"""source.expand: variables at submit, the escape, and what is left."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import FaultsError
from orchestrator.source import Document, expand, parse_document, unexpanded, unexpanded_by_path


def document(text: str) -> Document:
    return Document("f", "", {"a": text}, {}, {})


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${X}", "1"),
        ("a${X}b${X}c", "a1b1c"),
        ("${Y:-d}", "d"),
        ("${Y:-}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${X:-d}", "1"),
        ("$${X}", "${X}"),
        ("$$${X}", "$${X}"),
        ("$X $$ $", "$X $$ $"),
        ("$(x) `x`", "$(x) `x`"),
        ("${Y:-$X}", "$X"),
        ("${Y:-a:-b}", "a:-b"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(document(text), {"X": "1", "EMPTY": ""}).data == {"a": expanded}


def test_what_is_put_in_is_not_expanded_again() -> None:
    assert expand(document("${X}"), {"X": "${X}"}).data == {"a": "${X}"}


def test_all_that_is_not_set_is_told_at_its_place() -> None:
    found = parse_document(b"a: ${NO}\nb: [x, 'y ${1A}']\nc: ${OK}\n", "f")
    with pytest.raises(FaultsError) as caught:
        expand(found, {"OK": "1"})
    first, second = caught.value.faults
    assert (first.where(), first.key) == ("f:1:4", "a")
    assert "NO is not set" in first.message
    assert "${NO:-...}" in first.fix
    assert (second.where(), second.key) == ("f:2:8", "b[1]")
    assert "this is none" in second.message


def test_only_texts_are_expanded_and_places_stay() -> None:
    found = parse_document(b"a: {b: '${X}', c: 1, d: [true, '${X}']}\n", "f")
    done = expand(found, {"X": "long enough"})
    assert done.data == {"a": {"b": "long enough", "c": 1, "d": [True, "long enough"]}}
    assert done.positions == found.positions
    assert found.data["a"]["b"] == "${X}"


def test_what_is_left_is_listed() -> None:
    found = parse_document(b"a: ${X}${Y:-1}${X}\nb: $${X}\nc: {d: [1, '${']}\n", "f")
    first, second = unexpanded(found)
    assert (first.where(), first.message) == ("f:1:4", "${X}, ${Y:-1} is replaced at submit only")
    assert second.key == "c.d[1]"
    assert list(unexpanded_by_path(found)) == [("a",), ("c", "d", 1)]
    assert unexpanded(expand(document("$${X}"), {})) == []


def test_without_an_environment_only_the_escape_is_replaced() -> None:
    assert expand(document("$${X} ${X} ${"), None).data == {"a": "${X} ${X} ${"}


@settings(deadline=None)
@given(st.text(st.sampled_from("$${}ab:-"), max_size=20))
def test_the_escape_brings_back_any_text(text: str) -> None:
    escaped = document(text.replace("${", "$${"))
    assert expand(escaped, {}).data == {"a": text}
    assert expand(escaped, None).data == {"a": text}
    assert unexpanded(escaped) == []


@settings(deadline=None)
@given(st.text(max_size=30).filter(lambda text: "${" not in text), st.text(max_size=10))
def test_values_and_other_texts_come_through_unchanged(text: str, value: str) -> None:
    environ = {"X": value}
    assert expand(document(text), environ).data == {"a": text}
    assert expand(document("${X}"), environ).data == {"a": value}
