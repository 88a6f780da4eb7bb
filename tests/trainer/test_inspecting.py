"""`orchestrate-trainer inspect`: what it finds in models whose figures are known."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.estimate.activations import layer_of
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.inspected import inspected_outline
from orchestrator.estimate.memory import memory
from orchestrator.estimate.outline import Outline
from orchestrator.estimate.setting import Setting
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
from orchestrator.spec.presets import ModelSizes
from ranks import run_ranks
from runs import configuration
from trainer.commands import main

SIZES = ModelSizes(layers=3, heads=4, width=512, context=256)
VOCABULARY = 1000


def inspect(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command, run in `folder`.

    In a process of its own: a backward pass starts threads, which no fork would survive.
    """
    (told,) = run_ranks(1, _inspect, folder, arguments)
    return told  # type: ignore[no-any-return]


def _inspect(folder: Path, arguments: tuple[str, ...]) -> tuple[int, str, str]:
    said, warned = io.StringIO(), io.StringIO()
    os.chdir(folder)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(warned):
        code = main(["inspect", *arguments])
    return code, said.getvalue(), warned.getvalue()


def found(tmp_path: Path, factory: str, *more: str) -> dict[str, Any]:
    """What is written about a model of tests/trainer/models.py, with 32 tokens."""
    out = tmp_path / "own.inspected.json"
    told = inspect(tmp_path, "--factory", f"models:{factory}", "--context", "32", *more,
                   "-o", str(out))  # fmt: skip
    assert told[0] == 0, told
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    folder = tmp_path_factory.mktemp("gpt")
    args = json.dumps({**SIZES._asdict(), "vocab_size": VOCABULARY})
    told = inspect(folder, "--factory", "models:gpt", "--args", args, "--context", "256",
                   "-o", str(folder / "gpt.json"))  # fmt: skip
    assert told[0] == 0, told
    return inspected_outline((folder / "gpt.json").read_text(), "gpt.json")


def test_the_gpt_looked_at_is_the_gpt_by_formula(gpt: Outline) -> None:
    formula = gpt_outline(SIZES, VOCABULARY, tied=True, dropout=0.0)

    def shapes(outline: Outline) -> list[list[tuple[str, tuple[int, ...]]]]:
        units = (*outline.units, outline.root)
        return [[(p.name, p.shape) for p in unit.parameters] for unit in units]

    assert shapes(gpt) == shapes(formula)
    assert [unit.name for unit in gpt.units] == [unit.name for unit in formula.units]
    vectors = sum(p.numel for p in formula.parameters if len(p.shape) == 1)
    assert formula.flops_per_token is not None
    # The formula counts biases and norms as if they were matrices: 0.1 % of GPT-2.
    assert gpt.flops_per_token == formula.flops_per_token - 6 * vectors


def setting_of(strategy: str, precision: str) -> Setting:
    sizes = "layers: 3, heads: 4, width: 512, context: 256"
    text = (
        f"name: demo\ntrain: {{model: {{{sizes}}}, data: {{python_docs: true}}, steps: 1,"
        f" batch: {{micro: 3}}}}\nparallelism: {{strategy: {strategy}, precision: {precision}}}\n"
    )
    return Setting.of(resolve_job(parse_document(text.encode(), "job.yaml")).spec)


@pytest.mark.parametrize(
    ("strategy", "precision", "within"),
    [
        ("full_shard", "fp32", 0.03),
        ("full_shard", "bf16", 0.03),
        # The peak of a pass has a gradient in two formats, and is taken for each sequence.
        ("ddp", "bf16", 0.08),
    ],
)
def test_memory_is_that_of_the_formula(
    strategy: str, precision: str, within: float, gpt: Outline
) -> None:
    setting = setting_of(strategy, precision)
    by_formula = gpt_outline(SIZES, VOCABULARY, tied=True, dropout=0.0)
    kept = layer_of(setting, gpt, 0).kept
    assert kept == pytest.approx(layer_of(setting, by_formula, 0).kept, rel=0.01)
    whole = memory(setting, by_formula).total
    assert memory(setting, gpt).total == pytest.approx(whole, rel=within)


def test_a_tie_counts_once_and_a_buffer_is_seen(tmp_path: Path) -> None:
    content = found(tmp_path, "stack")
    names = [[p["name"] for p in unit["parameters"]] for unit in content["units"]]
    assert names == [[f"blocks.{i}.weight", f"blocks.{i}.bias"] for i in (0, 1)]
    assert [p["name"] for p in content["root"]["parameters"]] == ["embedding.weight", "head.bias"]
    assert content["buffer_bytes"] == 16 * 4
    # Two blocks and the head, forward, and backward for inputs and for weights.
    assert content["flops_per_token"] == 6 * (2 * 16 * 16 + 16 * 256)


def test_a_unit_keeps_its_input_alone_where_that_is_all(tmp_path: Path) -> None:
    kept = [unit["activation_bytes"] for unit in found(tmp_path, "stack")["units"]]
    assert kept == [{"fp32/none": 32 * 16 * 4, "autocast/none": 1024, "bf16/none": 1024}] * 2


def test_what_is_frozen_is_told_and_has_no_gradient(tmp_path: Path) -> None:
    content = found(tmp_path, "frozen")
    trainable = {p["name"]: p["trainable"] for p in content["root"]["parameters"]}
    assert trainable == {"embedding.weight": False, "head.weight": True, "head.bias": True}
    assert content["flops_per_token"] == 4 * 16 * 256


def test_a_model_without_blocks_is_one_unit_and_that_is_said(tmp_path: Path) -> None:
    content = found(tmp_path, "words")
    assert content["units"] == []
    assert any("no nn.ModuleList" in words for words in content["left_out"])


def test_units_as_asked_for(tmp_path: Path) -> None:
    content = found(tmp_path, "words", "--wrap", "size:4100")
    assert [unit["name"] for unit in content["units"]] == ["head"]
    assert content["wrap"] == {"by": "size", "classes": [], "min_parameters": 4100}


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("asks_for_values", "it was run whole on the CPU"),
        ("built_from_values", "it was built whole on the CPU"),
    ],
)
def test_a_model_that_needs_values_is_looked_at_all_the_same(
    factory: str, said: str, tmp_path: Path
) -> None:
    content, plain = found(tmp_path, factory), found(tmp_path, "words")
    assert content["root"] == plain["root"]
    assert content["flops_per_token"] == plain["flops_per_token"]
    (remark,) = [words for words in content["left_out"] if words.startswith("it was")]
    assert remark.startswith(said)


def test_a_jobs_trainer_json_says_what_to_look_at(tmp_path: Path) -> None:
    config = configuration(model__factory="models:words", model__args={"width": 8})
    (tmp_path / "trainer.json").write_text(json.dumps(config))
    told = inspect(tmp_path, str(tmp_path / "trainer.json"), "-o", str(tmp_path / "own.json"))
    assert told[0] == 0
    assert "4352 parameters in 1 unit(s), 1.229e+04 FLOPs a token" in told[1]
    assert json.loads((tmp_path / "own.json").read_text())["args"] == {"width": 8}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--factory", "models:fails"], "models:fails failed with RuntimeError: no such luck"),
        (["--factory", "models:nothing"], "has no attribute 'nothing'"),
        (["--factory", "models:unreduced"], "returned a loss of shape [1]"),
        (["--factory", "models:stumbles"], "a pass over one sequence of 32 tokens failed with"),
        (["--factory", "models:words", "--args", "[1]"], "--args: is [1] (allowed: a JSON object"),
        (["--factory", "models:words", "--args", "{"], "--args: is no JSON"),
        (["--factory", "models:words", "--wrap", "size:no"], "--wrap: is size:no (allowed: block"),
        (["trainer.json", "--factory", "models:words"], "give either CONFIG or --factory"),
        (["trainer.json"], "trainer.json: cannot be read as JSON"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    out = tmp_path / "own.json"
    code, said, warned = inspect(tmp_path, *arguments, "--context", "32", "-o", str(out))
    assert (code, said) == (2, "")
    assert warned.startswith("orchestrate-trainer inspect: ")
    assert words in warned
    assert len(warned.splitlines()) == 1
    assert not out.exists()
