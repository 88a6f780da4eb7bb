"""No secret and no control character of what a run folder holds comes onto a page."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.report.clean import Mask, secret_values, shown

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n+/xyz\n-----END RSA PRIVATE KEY-----"
TOKEN = "hf_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"a: {TOKEN}", TOKEN),
        ("env:\n  DB_PASSWORD: open sesame\n", "open sesame"),
        ("export API_KEY='q w'", "q w"),
        (f"key: |\n{KEY}\nnext: 1", "MIIEabc"),
        (f"cut off: |\n{KEY[:45]}", "MIIEabc"),
        ("url: https://me:pass@host/x", "pass@"),
    ],
)
def test_secrets_of_a_file_are_hidden(text: str, hidden: str) -> None:
    assert hidden in text
    found = Mask()(text)
    assert hidden not in found
    assert "***" in found


def test_a_secret_by_its_name_is_hidden_wherever_it_stands() -> None:
    data = {"env": {"WANDB_API_KEY": "tell nobody", "X": "seen"},
            "pod": [{"name": "DB_PASSWORD", "value": "two\nlines"}]}  # fmt: skip
    values = list(secret_values(data))
    assert sorted(values) == ["tell nobody", "two\nlines"]
    text = f"--key 'tell nobody' --x seen\n{json.dumps(data)}\n  two\n  lines"
    found = Mask(frozenset(values))(text)
    assert "nobody" not in found
    assert "lines" not in found
    assert "seen" in found


def test_what_follows_and_ordinary_values_stay() -> None:
    text = f"{KEY}\nname: demo\nlr: 3e-4\nHF_TOKEN_FILE: /run/token\neos_token: <end>"
    assert Mask()(text) == "***\n" + text.partition("-----END RSA PRIVATE KEY-----\n")[2]


@given(st.text())
def test_what_is_shown_can_be_written_and_read_again(text: str) -> None:
    found = shown(text)
    assert found.encode("utf-8").decode("utf-8") == found
    assert all(character.isprintable() or character == "\n" for character in found)


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=30))
def test_a_deep_file_is_searched_to_its_bottom(value: str) -> None:
    data: object = {"A_PASSWORD": value}
    for _ in range(20):
        data = {"x": [data]}
    assert list(secret_values(data)) in ([value], [])
    assert list(secret_values({"A_PASSWORD": "w" + value})) == ["w" + value]
