"""trainer.json is read strictly, and all of its faults are named at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import configuration
from trainer.config import parse_config, read_config
from trainer.contract import ConfigurationError


def faults(raw: object) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse_config(raw, "here")
    return str(caught.value).split("\n  ")[1:]


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "trainer.json"
    file.write_text(json.dumps(configuration(evaluation__every=5, data__paths=["a", "b"])))
    config = read_config(file)
    assert config.evaluation.every == 5
    assert config.data.paths == ("a", "b")
    assert config.model.vocab_size is None
    assert config.step_timeout_s == 60.0
    assert isinstance(config.step_timeout_s, float)


def test_all_faults_at_once() -> None:
    raw = configuration(steps="six", batch__micro=0.5, device="tpu", seed=True)
    raw["batch"]["macro"] = 1
    del raw["optimizer"]["lr"]
    raw["parallelism"]["ddp"] = []
    assert faults(raw) == [
        'device: is "tpu" (allowed: "cpu", "cuda", "xpu", "npu", "mlu")',
        "optimizer.lr: is missing",
        "batch.macro: unknown key",
        "batch.micro: is 0.5 (allowed: a whole number)",
        'steps: is "six" (allowed: a whole number)',
        "seed: is true (allowed: a whole number)",
        "parallelism.ddp: is [] (allowed: an object)",
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"steps": 0}, "steps: is 0 (allowed: from 1)"),
        ({"evaluation__every": 0}, "evaluation.every: is 0 (allowed: from 1)"),
        ({"load_timeout_s": 0}, "load_timeout_s: is 0.0 (allowed: above 0)"),
        ({"evaluation_timeout_s": -1}, "evaluation_timeout_s: is -1.0 (allowed: above 0)"),
        (
            {"device": "xpu", "backend": "nccl"},
            'device: is "xpu" (allowed with backend nccl: "cuda")',
        ),
        (
            {"device": "cpu", "backend": "hccl"},
            'device: is "cpu" (allowed with backend hccl: "npu")',
        ),
        (
            {"network__watch": "on"},
            'network.watch: is "on" (allowed: "off", "warn", "stop")',
        ),
        ({"network__promises": "P2P"}, 'network.promises: is "P2P" (allowed: a list)'),
        ({"model__heads": 3}, "model.heads: 3 does not divide model.width 32"),
        ({"optimizer__betas": [0.9]}, "optimizer.betas: has 1 numbers (allowed: 2)"),
        (
            {"parallelism__ddp__bucket_cap_mb": 0},
            "parallelism.ddp.bucket_cap_mb: is 0.0 (allowed: above 0)",
        ),
        (
            {
                "parallelism__strategy": "no_shard",
                "parallelism__fsdp__version": 1,
                "parallelism__precision": "bf16",
                "batch__accumulation": 2,
            },
            (
                "parallelism.gradient_sync: is last (allowed with fsdp.version 1,"
                " precision bf16 and batch.accumulation above 1: each)"
            ),
        ),
        ({"checkpoint__every_steps": 0}, "checkpoint.every_steps: is 0 (allowed: from 1)"),
        (
            {"checkpoint__every_steps": None},
            "checkpoint: has none (allowed: one of every_steps, every_s, mtbf_s)",
        ),
        (
            {"checkpoint__every_s": 900},
            (
                "checkpoint: has every_steps and every_s (allowed: one of every_steps, every_s,"
                " mtbf_s)"
            ),
        ),
        (
            {"checkpoint__every_steps": None, "checkpoint__every_s": 0},
            "checkpoint.every_s: is 0.0 (allowed: above 0)",
        ),
        (
            {"checkpoint__every_steps": None, "checkpoint__mtbf_s": -1},
            "checkpoint.mtbf_s: is -1.0 (allowed: above 0)",
        ),
        ({"checkpoint__timeout_s": 0}, "checkpoint.timeout_s: is 0.0 (allowed: above 0)"),
        ({"version": 2}, "version: is 2 (allowed: 1)"),
        ({"version": True}, "version: is true (allowed: 1)"),
        ({"data__paths": "a"}, 'data.paths: is "a" (allowed: a list)'),
        ({"data__paths": ["a", 1]}, "data.paths[1]: is 1 (allowed: text)"),
        ({"model__args": None}, "model.args: is null (allowed: an object)"),
        ({"data__validation_fraction": 1.5}, "data.validation_fraction: is 1.5 (allowed: below 1)"),
    ],
)
def test_one_fault(changes: dict[str, Any], fault: str) -> None:
    assert faults(configuration(**changes)) == [fault]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"NaN", b"[1]", b"null"])
def test_what_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trainer.json"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"trainer\.json"):
        read_config(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_config(tmp_path / "none.json")
