"""source: data and positions, by YAML 1.2, and never a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import FaultsError, Position, UserError
from orchestrator.source import parse_document, parse_value, read_document
from orchestrator.source.document import dotted
from orchestrator.source.scalars import resolve_plain


def parse(text: str) -> dict[str, Any]:
    document = parse_document(text.encode(), "job.yaml")
    assert document.faults == ()
    return document.data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:00:00", "12:00:00"),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("OFF", "OFF"),
        ("1e3", 1000.0),
        ("3e-4", 0.0003),
        (".5", 0.5),
        ("5.", 5.0),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("+1", 1),
        ("0b11", "0b11"),
        ("2026-11-30", "2026-11-30"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("~", None),
        ("", None),
        ("null", None),
        (".inf", math.inf),
        ("-.Inf", -math.inf),
        ("'1'", "1"),
        ('"true"', "true"),
        ("''", ""),
        ("|\n  a\n  b", "a\nb\n"),
        ("1.2.3", "1.2.3"),
        ("9" * 400, "9" * 400),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse(f"key: {text}\n")["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(parse("key: .nan")["key"])


@settings(deadline=None)
@given(st.integers())
def test_whole_numbers_stay(number: int) -> None:
    text = str(number)
    assert resolve_plain(text) == (number if len(text) <= 300 else text)


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_numbers_stay(number: float) -> None:
    text = repr(number).replace("inf", ".inf")
    assert resolve_plain(text) == number


# JSON is YAML, apart from what YAML takes for line breaks or forbids.
CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff\u2028\u2029")
TEXTS = st.text(CHARACTERS.filter(lambda c: c.isprintable() or c == "\n"), max_size=20)
KEYS = TEXTS.filter(lambda key: key != "<<" and len(json.dumps(key)) < 100)
SCALARS = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, 1]))
def test_json_is_read_as_it_is_and_every_path_has_its_places(
    data: dict[str, Any], indent: int | None
) -> None:
    text = json.dumps(data, ensure_ascii=False, indent=indent)
    document = parse_document(text.encode(), "f")
    assert document.data == data
    lines = text.split("\n")
    for path, value in _paths(data, ()):
        key, place = document.positions[path], document.value_positions[path]
        if path and isinstance(path[-1], str):
            assert _from(lines, key).startswith(json.dumps(path[-1], ensure_ascii=False))
        if not isinstance(value, (dict, list)):
            assert _from(lines, place).startswith(json.dumps(value, ensure_ascii=False))


def _paths(value: Any, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Any]]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    if isinstance(value, list):
        children = enumerate(value)
    return [(path, value), *(x for k, v in children for x in _paths(v, (*path, k)))]


def _from(lines: list[str], position: Position) -> str:
    return lines[position.line - 1][position.column - 1 :]


PIECES = st.sampled_from([*"ab1[]{},|>%@`~#?-:&*!\t\n\r\\'\"\xa0é\0\x85\ufeff"]) | st.sampled_from(
    ["b: ", "- ", "\n  ", "\n    ", "&a ", "*a", "!!str ", "<<: ", "---\n", "...", "name: ", "\r\n"]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join))
@example("a: &a {b: *a}")
@example("? {a: b}\n: c")
@example("%YAML 1.1\n---\na: 1")
@example("a: |\n\t\n  b")
def test_any_text_is_read_or_refused_with_a_place_that_exists(text: str) -> None:
    _read_or_refuse(text.encode())


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    _read_or_refuse(raw)


def _read_or_refuse(raw: bytes) -> None:
    try:
        faults = parse_document(raw, "f").faults
    except FaultsError as error:
        faults = error.faults
        assert faults
    for fault in faults:
        assert fault.message
        assert fault.render()
        if fault.position is not None:
            assert fault.position.line >= 1
            assert fault.position.column >= 1


def test_anchors_are_allowed_and_point_at_what_they_stand_for() -> None:
    document = parse_document(b"a: &x {n: 1}\nb: *x\nc: [*x, &y t, *y]\n", "f")
    assert document.data == {"a": {"n": 1}, "b": {"n": 1}, "c": [{"n": 1}, "t", "t"]}
    assert document.positions[("b",)] == Position(2, 1)
    assert document.value_positions[("b", "n")] == Position(1, 11)


def test_line_numbers_with_windows_line_breaks_and_a_byte_order_mark() -> None:
    document = parse_document(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f")
    assert document.data == {"a": 1, "b": 2}
    assert document.positions[("b",)] == Position(2, 1)
    assert document.fault(("b",), "m").source_line == "b: 2"


def test_columns_count_characters() -> None:
    document = parse_document("é: {日本: 1, x: 2}".encode(), "f")
    assert document.positions[("é", "x")] == Position(1, 12)


def test_a_missing_path_is_at_its_nearest_parent() -> None:
    document = parse_document(b"a:\n  b: 1\n", "f")
    assert document.position(("a", "c", "d")) == Position(1, 1)
    assert document.position(("a", "b"), "value") == Position(2, 6)
    assert document.fault(("a", "c"), "gone").key == "a.c"


def test_paths_are_written_with_dots_and_brackets() -> None:
    assert dotted(("a", "b", 0, "c")) == "a.b[0].c"
    assert dotted(()) == ""


def test_values_behind_secret_names_are_not_repeated() -> None:
    document = parse_document(b"env: {HF_TOKEN: hunter2, x: 1}\ntokens: data\n", "f")
    assert "hunter2" not in document.fault(("env", "x"), "m").render()
    assert document.fault(("tokens",), "m").source_line == "tokens: data"
    with pytest.raises(FaultsError) as caught:
        parse_document(b"MY_PASSWORD: hunter2: x", "f")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("1e-3", 0.001),
        ("true", True),
        ("", None),
        ("*.txt", "*.txt"),
        ("a: b", "a: b"),
        ("#1", "#1"),
        ("@x", "@x"),
        ("12:00:00", "12:00:00"),
        ("[a, 1, '2']", ["a", 1, "2"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("'1'", "1"),
        ('"a\\nb"', "a\nb"),
    ],
)
def test_values_of_set_options(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["[a", "{a: 1, a: 2}", "'x' y", "[a]\nb: c", "!!str x]["])
def test_values_of_set_options_that_begin_like_yaml_must_be_yaml(text: str) -> None:
    if text.startswith("!"):
        assert parse_value(text) == text
        return
    with pytest.raises(ValueError, match=r"\w"):
        parse_value(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="a folder, not a file"):
        read_document(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_document("a\0b")
    with pytest.raises(UserError, match="no such file in /"):
        read_document("surely-not-here.yaml")


def test_a_file_is_named_as_the_user_named_it(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("a: 1\na: 2\n")
    assert read_document(path).faults[0].file == str(path)
