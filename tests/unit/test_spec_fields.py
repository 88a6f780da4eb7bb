"""spec: the list of keys, the JSON Schema and the models say the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from orchestrator import spec
from orchestrator.errors import UserError
from orchestrator.source import parse_document
from orchestrator.spec import (
    PRESETS,
    JobSpec,
    children,
    fields,
    find_field,
    json_schema,
    resolve_job,
)
from orchestrator.spec.base import PLUGINS_VARIABLE
from orchestrator.spec.model import PresetName
from orchestrator.spec.suggest import ALIASES

GOOD: dict[str, Any] = {
    "name": "demo",
    "resources": {"nodes": 2, "memory": "80GiB", "time_limit": "1-12:00:00"},
    "network": None,
    "timeouts": {"step": "90m"},
    "train": {
        "model": {"preset": "nano"},
        "data": {"text": ["a", "b"]},
        "steps": 10,
        "optimizer": {"betas": [0.9, 0.95]},
    },
    "env": {"A": "1"},
    "clusters": {"slurm": {"resources": {"nodes": 4}, "train": {"data": {"text": None}}}},
}


def test_every_key_is_described_for_both_schedulers_or_for_none() -> None:
    for info in fields():
        assert info.description.endswith((".", "!")), info.path
        if info.path.partition(".")[0] in ("slurm", "kubernetes"):
            continue
        assert ("Slurm" in info.description) == ("Kubernetes" in info.description), info.path
    assert "--nodes" in find_field("resources.nodes").description


def test_paths_are_there_once_and_in_the_order_of_the_tree() -> None:
    paths = [info.path for info in fields()]
    assert len(paths) == len(set(paths))
    assert paths[0] == "name"
    assert "train.model.preset" in paths
    assert "clusters" in paths


@pytest.mark.parametrize(
    ("path", "type_", "default"),
    [
        ("name", "name (lower-case letters, digits, hyphens)", "required"),
        (
            "resources.nodes",
            "whole number from 1 to 10000 (or a range, as {min: 1, max: 2})",
            "1",
        ),
        ("resources.nodes.min", "whole number from 1 to 10000", "required"),
        ("resources.memory", "size (512MiB, 80GiB, 4GB)", "none"),
        ("timeouts.start", "duration (45s, 90m, 2h30m, 2d, 12:00:00, 1-12:00:00)", "none"),
        ("timeouts.shutdown", "duration (45s, 90m, 2h30m, 2d, 12:00:00, 1-12:00:00)", "5m"),
        ("parallelism.precision", "fp32 or bf16 or fp16", "fp32"),
        ("parallelism.ddp.static_graph", "true or false", "false"),
        ("parallelism.ddp.bucket_cap_mb", "number above 0 to 100000", "25"),
        ("parallelism.fsdp.version", "2 or 1", "2"),
        (
            "parallelism.fsdp.reshard_after_forward",
            "true, false or a number of ranks from 2",
            "none",
        ),
        ("parallelism.wrap.classes", "list of names of classes", "[]"),
        ("checkpoint.every", "number of steps, duration such as 15m, or auto", "100"),
        ("checkpoint.async", "true or false", "false"),
        ("timeouts.checkpoint", "duration (45s, 90m, 2h30m, 2d, 12:00:00, 1-12:00:00)", "30m"),
        ("train.optimizer.betas", "list of two numbers, each from 0 to below 1", "[0.9, 0.95]"),
        ("train.optimizer.lr", "number above 0 to 100", "0.0003"),
        ("train.data.text", "path or list of paths, globs allowed", "none"),
        ("train.model", "map", "required"),
        ("env", "map of variable names to texts", "none"),
    ],
)
def test_types_and_defaults_in_words(path: str, type_: str, default: str) -> None:
    info = find_field(path)
    assert (info.type, info.default) == (type_, default)


def test_nothing_is_allowed_only_where_it_says_so() -> None:
    assert find_field("parallelism.fsdp.reshard_after_forward").optional
    assert find_field("train.evaluation.every").optional
    assert not find_field("checkpoint.every").optional  # one of two types, and none of them null


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("resources.node", "resources.nodes"),
        ("nodes", "resources.nodes"),
        ("checkpoint.steps", "train.steps"),
        ("zzzzz", "explain"),
    ],
)
def test_an_unknown_key_is_answered_with_what_was_meant(path: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        find_field(path)


def test_names_from_other_tools_lead_to_keys_that_exist() -> None:
    for name, path in ALIASES.items():
        assert find_field(path).supported
        assert name not in {info.path for info in fields()}


def test_keys_of_entries_are_found_by_the_names_and_numbers_of_these() -> None:
    mount = find_field("kubernetes.volumes.data.mount")
    assert mount is find_field("kubernetes.volumes.NAME.mount")
    assert find_field("kubernetes.tolerations.0.key").path == "kubernetes.tolerations.N.key"
    assert "NAME.key" in children("kubernetes.secret_env")
    assert children("kubernetes.volumes.NAME") == children("kubernetes.runs")
    with pytest.raises(UserError, match=r"kubernetes\.volumes\.NAME\.mount"):
        find_field("kubernetes.volumes.data.mountt")


def test_presets_are_those_that_can_be_named() -> None:
    assert set(PresetName.__args__) == set(PRESETS)  # type: ignore[attr-defined]
    for sizes in PRESETS.values():
        assert sizes.width % sizes.heads == 0


def test_the_schema_is_a_schema_and_takes_what_the_models_take() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(GOOD, schema)
    resolve_job(parse_document(json.dumps(GOOD).encode(), "f"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "De Mo"},
        {"name": None},
        {"nodes": 1},
        {"script": {}},
        {"resources": {"nodes": 0}},
        {"resources": {"memory": "80G"}},
        {"resources": {"memory": 80}},
        {"resources": {"time_limit": "90"}},
        {"timeouts": {"step": 90}},
        {"parallelism": {"strategy": "FULL_SHARD"}},
        {"parallelism": {"fsdp": {"reshard_after_forward": 1}}},
        {"parallelism": {"fsdp": {"version": 3}}},
        {"parallelism": {"wrap": {"classes": "Block"}}},
        {"env": {"1A": "x"}},
        {"env": {"A": 1}},
        {"clusters": {"slurm": {"nodes": 1}}},
        {"clusters": {"slurm": {"resources": {"nodes": "x"}}}},
        {"train": {"steps": 1}},
    ],
)
def test_the_schema_refuses_what_the_models_refuse(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(GOOD | change, json_schema())


def test_the_schema_has_the_same_keys_and_defaults() -> None:
    schema = json_schema()
    for info in fields():
        found = _in_schema(schema, info.path.split("."))
        assert (found is not None) == info.supported, info.path
        if found is not None and info.type.startswith("duration") and info.default != "none":
            assert found["default"] == info.default


def _in_schema(schema: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    part: dict[str, Any] | None = schema
    for name in path:
        if part is None:
            return None
        for option in [part, *part.get("anyOf", [])]:
            if "$ref" in option:
                part = schema["$defs"][option["$ref"].rpartition("/")[2]]
        below = part.get("additionalProperties") if name == "NAME" else part.get("items")
        entry = below if name in ("NAME", "N") else None
        part = entry or part.get("properties", {}).get(name)
    return part


def test_the_models_are_frozen_and_strict() -> None:
    spec = JobSpec.model_validate(
        {k: v for k, v in GOOD.items() if k not in ("clusters", "network")}
    )
    with pytest.raises(ValidationError, match="frozen"):
        spec.resources.nodes = 3  # type: ignore[misc]
    assert spec.timeouts.step == 5400
    assert spec.resources.memory == 80 * 2**30
    assert spec.train.data.text == ("a", "b")


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({}, 1),
        ({"ranks_per_node": 2}, 2),
        ({"nodes": 2, "ranks_per_node": 2}, 4),
        ({"nodes": 3, "gpus_per_node": 8}, 24),
        ({"gpus_per_node": 8, "ranks_per_node": 8}, 8),
    ],
)
def test_the_number_of_ranks(resources: dict[str, int], ranks: int) -> None:
    train = {"model": {"preset": "nano"}, "data": {"python_docs": True}, "steps": 1}
    spec = JobSpec.model_validate({"name": "a", "resources": resources, "train": train})
    assert spec.num_ranks == ranks
    assert spec.train.data.kind == "python_docs"


def test_a_preset_is_refined_by_sizes() -> None:
    text = (
        b"name: a\ntrain: {model: {preset: nano, layers: 3}, data: {python_docs: true}, steps: 1}"
    )
    sizes = resolve_job(parse_document(text, "f")).spec.train.model.sizes
    assert sizes is not None
    assert (sizes.layers, sizes.heads, sizes.width, sizes.context) == (3, 2, 64, 64)


def test_a_factory_has_no_sizes_of_ours() -> None:
    text = (
        b"name: a\n"
        b"train: {model: {factory: 'pkg.mod:make', context: 8, args: {n: 1}}, steps: 1,\n"
        b"  data: {python_docs: true}}\n"
    )
    model = resolve_job(parse_document(text, "f")).spec.train.model
    assert model.sizes is None
    assert (model.context, model.args) == (8, {"n": 1})


def test_the_package_has_all_its_names_and_no_other() -> None:
    assert sorted(name for names in spec._HOMES.values() for name in names) == sorted(spec.__all__)
    for name in spec.__all__:
        assert getattr(spec, name).__class__.__name__ != "module", name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = spec.nonsense


def test_a_job_file_without_faults_needs_neither_keys_nor_words_nor_schema() -> None:
    without_null = {name: GOOD[name] for name in ("name", "resources", "timeouts", "train")}
    code = f"""
import sys
from orchestrator.profiles import embedded_profiles
from orchestrator.source import parse_document
from orchestrator.spec import resolve_job
text = {json.dumps(without_null)!r}.encode()
resolve_job(parse_document(text, "f"), embedded_profiles().choose())
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    late = {"keys", "words", "schema"}
    assert not {f"orchestrator.spec.{name}" for name in late} & set(loaded.stdout.split())


@pytest.mark.parametrize("before", [None, "some-plugin"])
def test_programs_started_from_here_keep_their_plugins_of_pydantic(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLUGINS_VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(PLUGINS_VARIABLE, before)
    assert JobSpec.model_rebuild(force=True)
    assert os.environ.get(PLUGINS_VARIABLE) == before
