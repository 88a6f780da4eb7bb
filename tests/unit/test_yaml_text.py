"""Data as YAML text, and the patches between two trees: any reader gets back what was written."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.images import split_image
from orchestrator.json_patch import operations
from orchestrator.source import parse_document
from orchestrator.yaml_text import yaml_text

# What YAML cannot hold, and our reader refuses: halves of a character.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LINES = st.lists(TEXTS | st.sampled_from(["", " ", "a: b", "# x", "- y", "no"])).map("\n".join)
LEAVES = st.none() | st.booleans() | st.integers() | TEXTS | LINES
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=12
)
MAPS = st.dictionaries(TEXTS | st.sampled_from(["yes", "1", "a/b", "~x"]), TREES, max_size=4)


@given(MAPS)
def test_a_reader_of_either_yaml_gets_back_what_was_written(tree: dict[str, Any]) -> None:
    text = yaml_text(tree)
    assert yaml.load(text, Loader=yaml.CSafeLoader) == tree
    if tree and "<<" not in text and len(text) < 100_000:
        assert parse_document(text.encode(), "tree.yaml").data == tree


def test_a_text_of_several_lines_is_a_block_that_a_diff_shows_line_by_line() -> None:
    assert yaml_text({"a": {"b": ['{\n  "x": 1\n}\n', "no", "1.0"]}}) == (
        'a:\n  b:\n    - |\n      {\n        "x": 1\n      }\n    - "no"\n    - "1.0"\n'
    )


def applied(tree: Any, patch: list[dict[str, Any]]) -> Any:
    """What RFC 6902 says that a patch of add, replace and remove makes of a tree."""
    root = {"": copy.deepcopy(tree)}
    for step in patch:
        place: Any = root
        *folders, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")
        ]
        for part in folders:
            place = place[int(part) if isinstance(place, list) else part]
        key = int(last) if isinstance(place, list) else last
        if step["op"] == "remove":
            del place[key]
        else:
            assert (step["op"] == "add") == (key not in place if isinstance(place, dict) else False)
            place[key] = step["value"]
    return root[""]


@given(MAPS, MAPS)
def test_a_patch_turns_the_one_tree_into_the_other(old: Any, new: Any) -> None:
    patch = list(operations(old, new))
    assert json.dumps(applied(old, patch), sort_keys=True) == json.dumps(new, sort_keys=True)


@given(MAPS)
def test_no_patch_where_nothing_differs(tree: dict[str, Any]) -> None:
    assert not list(operations(tree, copy.deepcopy(tree)))


def test_a_patch_goes_as_deep_as_it_can() -> None:
    old = {"a": {"x/y~z": 1, "l": [1, {"m": True}]}, "n": [1]}
    new = {"a": {"x/y~z": 2, "l": [1, {"m": 1}]}, "n": [1, 2]}
    assert list(operations(old, new)) == [
        {"op": "replace", "path": "/a/l/1/m", "value": 1},
        {"op": "replace", "path": "/a/x~1y~0z", "value": 2},
        {"op": "replace", "path": "/n", "value": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("trainer", ("trainer", "", "")),
        ("trainer:1", ("trainer", "1", "")),
        ("host:5000/a/trainer", ("host:5000/a/trainer", "", "")),
        ("host:5000/a/trainer:1.2", ("host:5000/a/trainer", "1.2", "")),
        ("a/trainer@sha256:00", ("a/trainer", "", "sha256:00")),
        ("host:5000/a/trainer:1@sha256:00", ("host:5000/a/trainer", "1", "sha256:00")),
    ],
)
def test_an_image_is_a_name_a_tag_and_a_digest(image: str, parts: tuple[str, str, str]) -> None:
    assert split_image(image) == parts
