"""Ranks that differ in what they run are found before they train, and named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ranks import grouped, run_ranks
from runs import configuration
from trainer.agreement import (
    CODE,
    CONFIGURATION,
    FACTORY,
    ORDER,
    VERSIONS,
    agree,
    facts_of_model,
    facts_of_run,
    minority,
)
from trainer.config import parse_config
from trainer.contract import ConfigurationError


def refusal(facts: list[dict[str, list[str]]]) -> str | None:
    rank = int(os.environ["RANK"])
    try:
        agree(facts[rank])
    except ConfigurationError as error:
        return str(error)
    return None


def on_ranks(*lines: list[str]) -> list[str | None]:
    return run_ranks(len(lines), grouped, refusal, [{VERSIONS: each} for each in lines])


def test_ranks_that_agree() -> None:
    assert on_ranks(["a", "b"], ["a", "b"]) == [None, None]


def test_the_odd_rank_is_named_on_all_ranks() -> None:
    told = on_ranks(["a", "b"], ["a", "c"], ["a", "b"])
    assert told[0] == told[1] == told[2]
    host = os.uname().nodename
    assert told[0] is not None
    assert f"rank 1 ({host}) and rank 0, 2 differ in the versions" in told[0]
    assert "First difference: 'c' and 'b'" in told[0]


def test_a_line_too_many_is_a_difference() -> None:
    (told, _) = on_ranks(["a"], ["a", "b"])
    assert told is not None
    assert "rank 1" in told
    assert "'b' and 'nothing'" in told


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_minority(values: list[int]) -> None:
    odd, usual = minority(values)
    assert sorted(odd + usual) == list(range(len(values)))
    assert len({values[rank] for rank in usual}) == 1
    count = len(usual)
    assert all(values.count(value) <= count for value in values)
    if odd and values.count(values[0]) == count:
        assert 0 in usual


def test_the_order_of_modules_counts_even_where_shapes_are_equal() -> None:
    one, other = nn.Module(), nn.Module()
    for model, names in ((one, "ab"), (other, "ba")):
        for name in names:
            model.add_module(name, nn.Linear(2, 2))
    assert facts_of_model(one) != facts_of_model(other)
    assert facts_of_model(one)[ORDER][:2] == ["model: Module", "a: Linear"]
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    assert facts_of_model(frozen)[ORDER][-1] == "bias: float32 [2], frozen"


def test_facts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_own.py").write_text("a = 1\n")
    config = parse_config(configuration(model__factory="users_own:f"), "test")
    before = facts_of_run(config, "data")
    (tmp_path / "users_own.py").write_text("a = 2\n")
    after = facts_of_run(config, "data")
    assert [name for name in before if before[name] != after[name]] == [FACTORY]
    assert any(line.startswith("loop.py ") for line in before[CODE])
    assert "optimizer.lr: 0.01" in before[CONFIGURATION]
    assert facts_of_run(parse_config(configuration(), "test"), "data")[FACTORY] == []
    config = parse_config(configuration(model__factory="no.such:f"), "test")
    assert facts_of_run(config, "data")[FACTORY] == []
