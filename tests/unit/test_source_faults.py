"""source: each fault at its place, in plain words, with a fix."""

from __future__ import annotations

import pytest

from orchestrator.errors import Fault, FaultsError
from orchestrator.source import parse_document


def faults_of(raw: str | bytes) -> tuple[Fault, ...]:
    data = raw.encode() if isinstance(raw, str) else raw
    try:
        return parse_document(data, "job.yaml").faults
    except FaultsError as error:
        return error.faults


ONE_FAULT = [
    ("a: b: c", "1:5", "a colon inside of a value", "quotes"),
    ("a: b\n c: d\n", "2:2", "does not fit the lines above", "same indentation"),
    ("a: 1\nnodes 2\nb: 1", "2:1", "a line without a colon", "key: value"),
    ("nodes 2\nb: 1", "1:1", "a line without a colon", "key: value"),
    ("a: [1, 2\nb: 3", "1:4", "this [ is not closed", ""),
    ("a: {x: 1\n", "1:4", "this { is not closed", ""),
    ("b: [\n", "1:4", "this [ is not closed", ""),
    ("b:\n  - {a: \n", "2:5", "this { is not closed", ""),
    ("a: 'x\nb: 1", "1:4", "quote is not closed", "other one"),
    ("a: 'it's'\n", "1:8", "unexpected text after a value", "quotes"),
    ("a: @x", "1:4", "cannot begin with @", "quotes"),
    ("a: %x", "1:4", "cannot begin with %", "quotes"),
    ("a: *.txt", "1:4", "* begins an alias", '"*.txt"'),
    ("a: &", "1:4", "& begins an anchor", "quotes"),
    ("a: !<", "1:4", "! begins a tag", "quotes"),
    ("- a\nb: 1", "2:1", "not a list item", "- "),
    ("a: 1\n- b", "2:1", "a list item between the keys", "indent"),
    ("a: - b", "1:4", "cannot stand on the line of its key", "[a, b]"),
    ('a: "C:\\Users"', "1:9", "backslash", "single quotes"),
    ("a:\n  b: 1\n c: 2", "3:2", "indentation fits none", "same indentation"),
    ("a: 1\n}", "2:1", "closing bracket", "remove"),
    ("]", "1:1", "closing bracket", "remove"),
    ("a: 1\n: 3", "2:1", "a colon without a key", "key: value"),
    ("a:\n\tb: 1", "2:1", "a tab", "spaces"),
    ("a:\tb", "1:3", "a tab", "spaces"),
    ("a: 1\nb: [1,\t2]", "2:7", "a tab", "spaces"),
    ("a:\xa02\nb: 1", "1:3", "a non-breaking space", "retype"),
    ("a:\n\xa0b: 2", "2:1", "a non-breaking space", "retype"),
    ("a: 1\x07", "1:5", "invisible character U+0007", "remove"),
    ("a: 1\nb: \ufeffc", "2:4", "invisible character U+FEFF", "remove"),
    ("a: 1\nb: {c: 1, a: 2, c: 3}", "2:17", "on line 2 already", "remove one"),
    ("a: 1\nb: 2\na: 3", "3:1", "on line 1 already", "remove one"),
    ("x: {}\n<<: {a: 1}", "2:1", "merge keys", "clusters"),
    ("1: a", "1:1", "the key 1 is not a text", "quotes"),
    ("true: a", "1:1", "the key true is not a text", "quotes"),
    ("~: a", "1:1", "an empty key is not a text", "quotes"),
    ("a: {{x}}", "1:5", "a list or map cannot be a key", "{{name}}"),
    ("a: !!python/object:os.system x", "1:4", "!!python/object:os.system has no meaning", "remove"),
    ("a: !x [1]", "1:4", "tag !x has no meaning", "remove"),
    ("a: *x", "1:4", "no anchor &x", '"*x"'),
    ("a: &a {b: *a}", "1:11", "stands inside of &a", ""),
    ("a: &a [1, *a]", "1:11", "stands inside of &a", ""),
    ("a: b\n---\nc: d", "2:1", "a second document", "file of its own"),
    ('a: "x\\0y"', "1:4", "a NUL character", "remove"),
    ("", "", "the file is empty", "orchestrate init"),
    ("# only a comment\n", "", "the file is empty", "orchestrate init"),
    ("~", "", "the file is empty", "orchestrate init"),
    ("- a\n- b\n", "1:1", "holds a list, where a map", "name: ..."),
    ("hello", "1:1", "holds a single value, where a map", "name: ..."),
    ("%YAML 3.0\n---\na: 1", "1:1", "version of YAML", "remove"),
    ("a: é".encode("latin-1"), "1:4", "byte 0xe9 is not UTF-8", "iconv"),
    ("a: 1".encode("utf-16"), "", "is UTF-16, not UTF-8", "UTF-8"),
    ("a: 1".encode("utf-32"), "", "is UTF-32, not UTF-8", "UTF-8"),
    ("a: 1".encode("utf-16-le"), "", "UTF-16 or not a text", "UTF-8"),
    (b"\x7fELF\0\0", "", "not a text", "UTF-8"),
]


@pytest.mark.parametrize(("raw", "where", "message", "fix"), ONE_FAULT)
def test_one_fault_at_its_place(raw: str | bytes, where: str, message: str, fix: str) -> None:
    (fault,) = faults_of(raw)
    assert fault.where() == f"job.yaml:{where}".rstrip(":")
    assert message in fault.message
    assert fix in fault.fix


@pytest.mark.parametrize(
    "text",
    [
        "a: 'x\ty'",
        "a: 1\t# note\there",
        "a: 1 # x\ty",
        "a: |\n  x\ty\n",
        "a: 1\t\nb: 2\t",
        "a: x",
    ],
)
def test_tabs_in_texts_comments_and_at_ends_of_lines_are_no_fault(text: str) -> None:
    assert faults_of(text) == ()


def test_faults_beside_the_data_come_all_at_once_in_order() -> None:
    text = "a: 1\nb: !x 1\na: 2\nc:\t3\n1: 2\nd: *none\n"
    document = parse_document(text.encode(), "f")
    assert [str(f.position) for f in document.faults] == [
        f"Position(line={line}, column={column})"
        for line, column in [(2, 4), (3, 1), (4, 3), (5, 1), (6, 4)]
    ]
    assert document.data == {"a": 1, "b": 1, "c": 3, "d": None}


def test_what_was_found_before_a_syntax_error_is_told_too() -> None:
    faults = faults_of("a: 1\na: 2\nb: [\n")
    assert ["already" in faults[0].message, "not closed" in faults[1].message] == [True, True]


def test_a_huge_file_is_refused_before_it_is_read_as_yaml() -> None:
    (fault,) = faults_of(b"a: 1\n" * 300_000)
    assert "larger than 1 MiB" in fault.message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "[{", "? "])
def test_deep_nesting_is_refused(opening: str) -> None:
    faults = faults_of("a: " * (opening[0] in "[{") + opening * (2**19 // len(opening)))
    assert len(faults) == 1
    assert "levels inside of one another" in faults[0].message


def test_a_bomb_of_aliases_is_refused() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 50)
    )
    (fault,) = faults_of(bomb)
    assert "more than 100000 values" in fault.message


def test_a_chain_of_aliases_counts_as_deep_as_it_is() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2000))
    (fault,) = faults_of(chain)
    assert "more than 64 levels" in fault.message


def test_many_faults_are_cut() -> None:
    assert len(faults_of("".join("a: 1\n" for _ in range(5000)))) == 100
