"""The planner's view of a job's model: by formula, or from the file about a factory's model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import FaultsError, UserError
from orchestrator.estimate.inspected import inspected_outline
from orchestrator.estimate.model import inspect_command, inspected_path, outline_of
from orchestrator.estimate.outline import Outline, Parameter, Unit
from orchestrator.source import parse_document
from orchestrator.spec import JobSpec, resolve_job

OWN = "factory: nets.mine:make, args: {width: 64, name: 'a b'}, context: 32"


def bytes_of(number: int) -> dict[str, int]:
    return {"fp32/none": number, "autocast/none": 3, "bf16/none": 2}


CONTENT: dict[str, Any] = {
    "version": 1, "torch": "2.13.0", "factory": "nets.mine:make",
    "args": {"name": "a b", "width": 64}, "context": 32,
    "wrap": {"by": "block", "classes": [], "min_parameters": 0},
    "buffer_bytes": 16, "flops_per_token": 600.0,
    "units": [{
        "name": "blocks.0", "activation_bytes": bytes_of(9),
        "parameters": [
            {"name": "blocks.0.w", "shape": [2, 3], "trainable": False, "item_bytes": 2}
        ],
    }],
    "root": {"name": "", "parameters": [], "activation_bytes": bytes_of(7)},
    "working_bytes": bytes_of(5), "left_out": ["this"],
}  # fmt: skip


def spec_of(model: str, data: str = "python_docs: true", parallelism: str = "") -> JobSpec:
    text = (
        f"name: demo\ntrain:\n  model: {{{model}}}\n  data: {{{data}}}\n  steps: 1\n"
        f"parallelism: {{{parallelism}}}\n"
    )
    return resolve_job(parse_document(text.encode(), "own.yaml")).spec


def sharded(wrap: str) -> str:
    return f"strategy: full_shard, wrap: {{{wrap}}}"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    return tmp_path / "own.yaml"


def write(job_file: Path, **changes: Any) -> None:
    inspected_path(job_file).write_text(json.dumps({**CONTENT, **changes}))


def test_a_factorys_model_comes_from_the_file_beside_the_job(job_file: Path) -> None:
    write(job_file)
    block = Unit("blocks.0", (Parameter("blocks.0.w", (2, 3), False, 2),), bytes_of(9))
    root = Unit("", (), bytes_of(7))
    assert outline_of(spec_of(OWN), job_file) == Outline(
        (block,), root, 1, 0, 0, 0, 0.0, 600.0,
        buffer_bytes=16, working_bytes=bytes_of(5), left_out=("this",),
    )  # fmt: skip


def test_without_the_file_the_command_is_told(job_file: Path) -> None:
    with pytest.raises(UserError) as told:
        outline_of(spec_of(OWN), job_file)
    command = inspect_command(spec_of(OWN), job_file)
    assert str(told.value).endswith(command)
    assert shlex.split(command) == [
        "cd", str(job_file.parent), "&&", "orchestrate-trainer", "inspect",
        "--factory", "nets.mine:make", "--args", '{"name": "a b", "width": 64}',
        "--context", "32", "--wrap", "block", "-o", "own.inspected.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "wrap", "key", "message"),
    [
        (OWN.replace("mine", "other"), "", "factory", "is nets.mine:make, and the job has"),
        (OWN.replace("64", "65"), "", "args", 'is {"name": "a b", "width": 64}, and the job'),
        (OWN.replace("32", "33"), "", "context", "is 32, and the job has 33"),
        (OWN, "by: size, min_parameters: 5", "wrap", "is block, and the job has size:5"),
        (OWN, "by: class, classes: [A, B]", "wrap", "is block, and the job has class:A,B"),
    ],
)
def test_a_file_about_another_model_is_refused(
    model: str, wrap: str, key: str, message: str, job_file: Path
) -> None:
    write(job_file)
    with pytest.raises(FaultsError) as told:
        outline_of(spec_of(model, parallelism=sharded(wrap)), job_file)
    (fault,) = told.value.faults
    assert fault.key == key
    assert message in fault.message
    assert "orchestrate-trainer inspect --factory" in fault.fix


def test_each_fault_of_a_file_has_its_path(job_file: Path) -> None:
    some = {"fp32/none": 1, "autocast/none": 2}
    unit = {"name": 3, "parameters": [{"name": "w", "shape": ["x", -5], "item_bytes": 0}]}
    write(job_file, units=[unit], working_bytes=some, context="32", more=1)
    with pytest.raises(FaultsError) as told:
        outline_of(spec_of(OWN), job_file)
    assert {fault.key for fault in told.value.faults} == {
        "context", "more", "units.0.name", "units.0.activation_bytes", "working_bytes.bf16/none",
        "units.0.parameters.0.shape.0", "units.0.parameters.0.shape.1",
        "units.0.parameters.0.trainable", "units.0.parameters.0.item_bytes",
    }  # fmt: skip
    assert "context: is 32 (input should be a valid integer)" in str(told.value.faults[0].render())


@given(st.text() | st.recursive(st.none() | st.text(), st.lists, max_leaves=5).map(json.dumps))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with pytest.raises(UserError):
        inspected_outline(text, "some.json")


@pytest.mark.parametrize(
    ("model", "data", "expected", "assumed"),
    [
        ("", "python_docs: true", 256, False),
        ("", "text: '*.txt'", 256, False),
        ("vocab_size: 999", "tokens: '*.bin'", 999, False),
        ("", "tokens: '*.bin'", 50_257, True),
        ("", "text: '*.txt', tokenizer: tokenizer.json", 4, False),
        ("", "text: '*.txt', tokenizer: unigram.json", 3, False),
        ("", "text: '*.txt', tokenizer: broken.json", 50_257, True),
        ("", "text: '*.txt', tokenizer: missing.json", 50_257, True),
    ],
)
def test_number_of_tokens(
    model: str, data: str, expected: int, assumed: bool, job_file: Path
) -> None:
    added = [{"id": 9, "content": "<pad>"}, {"id": 0, "content": "a"}]
    contents = {
        "tokenizer.json": {"model": {"vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": added},
        "unigram.json": {"model": {"vocab": [["a", -1.0], ["b", -2.5], ["c", 0]]}},
        "broken.json": {"model": []},
    }
    for name, content in contents.items():
        (job_file.parent / name).write_text(json.dumps(content))
    outline = outline_of(spec_of(f"preset: nano, {model}", data), job_file)
    assert outline.vocab_size == expected
    assert any("train.model.vocab_size" in words for words in outline.left_out) == assumed


@pytest.mark.parametrize(("wrap", "said"), [("by: block", False), ("by: size", True)])
def test_units_that_are_not_blocks_are_told(wrap: str, said: bool, job_file: Path) -> None:
    outline = outline_of(spec_of("preset: nano", parallelism=sharded(wrap)), job_file)
    assert any("wrap.by: size" in words for words in outline.left_out) == said
