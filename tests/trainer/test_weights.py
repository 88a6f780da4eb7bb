"""Weights go out into one safetensors file and come back into a new run, to the bit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ranks import run_ranks
from runs import Run, configuration, with_trainer
from trainer import checkpoint
from trainer.contract import ConfigurationError
from trainer.loop import Trainer
from trainer.weights import export, weights_of

STEPS = 3
RANKS = 2


def config(**changes: Any) -> dict[str, Any]:
    return configuration(**{"num_ranks": RANKS, "steps": STEPS, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("trained"))
    assert run.finish(config()) == "done"
    return run


@pytest.fixture(scope="module")
def exported(trained: Run) -> Path:
    out = trained.root / "weights.safetensors"
    export(trained.run_dir, out)
    return out


def saved_weights(run: Run) -> dict[str, Tensor]:
    folder = run.checkpoint_dir / run.checkpoints()[-1]
    content: dict[str, Tensor] = checkpoint.load_part(folder, "model.pt")
    return content


def test_what_is_tied_is_in_the_file_once(trained: Run, exported: Path) -> None:
    found, saved = load_file(exported), saved_weights(trained)
    assert saved.keys() - found.keys() == {"head.weight"}
    assert found.keys() < saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in found.items())
    with safe_open(exported, "pt") as file:
        metadata = file.metadata()
    assert metadata["step"] == str(STEPS)
    assert metadata["checkpoint"] == trained.checkpoints()[-1]
    assert metadata["format"] == "pt"
    assert json.loads(metadata["ties"]) == {"head.weight": "token.weight"}


Arrays = dict[str, "np.ndarray[Any, Any]"]


def started(run: Run, changed: dict[str, Any]) -> Arrays:
    """The weights that a trainer begins with, on rank 0; arrays, which go between processes."""

    def weights(trainer: Trainer) -> Arrays:
        assert trainer.progress.step == 0
        assert not trainer.optimizer.state
        return {name: value.numpy() for name, value in trainer.parallel.weights(True).items()}

    os.chdir(run.workdir)
    found: Arrays = with_trainer(run, changed, weights)
    return found


SPREAD: dict[str, dict[str, Any]] = {
    "ddp": {},
    "full_shard": {"parallelism__strategy": "full_shard"},
    "full_shard of version 1": {
        "parallelism__strategy": "full_shard", "parallelism__fsdp__version": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("spread", SPREAD)
def test_a_new_run_starts_with_exactly_these_weights(
    trained: Run, exported: Path, tmp_path: Path, spread: str
) -> None:
    run = Run(tmp_path)
    run.write_text()
    changed = config(model__init=str(exported), seed=99, **SPREAD[spread])
    found, saved = run_ranks(RANKS, started, run, changed)[0], saved_weights(trained)
    assert found.keys() == saved.keys()
    assert all(np.array_equal(value, saved[name].numpy()) for name, value in found.items())


def test_both_layouts_of_a_checkpoint_give_the_same_weights(tmp_path: Path) -> None:
    run = Run(tmp_path)
    spread = SPREAD["full_shard"] | {"checkpoint__format": "both"}
    run.finish(config(**spread))
    folder = run.checkpoint_dir / run.checkpoints()[-1]
    whole, parts = weights_of(folder, "full"), weights_of(folder, "sharded")
    assert whole.keys() - parts.keys() == {"head.weight"}  # tied: among the parts once
    assert all(torch.equal(value, whole[name]) for name, value in parts.items())


def test_a_run_with_a_checkpoint_goes_on_from_that(exported: Path, tmp_path: Path) -> None:
    run = Run(tmp_path)
    changed = config(model__init=str(exported))
    run.finish(changed | {"steps": 2})
    first = run.losses()[1]
    exported_again = tmp_path / "other.safetensors"
    save_file({k: v * 0 for k, v in load_file(exported).items()}, exported_again)
    (run.run_dir / "DONE").unlink()
    run.finish(config(model__init=str(exported_again)), attempt=2)
    assert run.events("start")[1]["resumed_from"] == "step-000000002-attempt-00001"
    assert run.events("changed")[0]["changes"][0]["key"] == "train.steps"
    assert len(run.events("changed")[0]["changes"]) == 1
    assert run.losses()[1] == first
    assert run.losses()[3] != pytest.approx(first, rel=1e-3)


def test_a_file_without_our_metadata_may_name_a_tie_either_way(
    exported: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.write_text()
    content = load_file(exported)
    content["head.weight"] = content.pop("token.weight")
    save_file(content, tmp_path / "x.safetensors")
    changed = config(model__init="../x.safetensors", num_ranks=1)
    (found,) = run_ranks(1, started, run, changed)
    assert np.array_equal(found["token.weight"], content["head.weight"].numpy())


def test_an_untied_model_takes_both_from_a_tied_one(exported: Path, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    changed = config(model__init=str(exported), model__tied=False, num_ranks=1)
    (found,) = run_ranks(1, started, run, changed)
    assert np.array_equal(found["token.weight"], found["head.weight"])


def refused(run: Run, changed: dict[str, Any]) -> str:
    try:
        with_trainer(run, changed, lambda trainer: None)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"torch", "train.model.init"),
        ({"token.weight": torch.zeros(3)}, "does not fit the model: blocks.0."),
    ],
)
def test_what_does_not_fit_is_told_with_the_key(
    tmp_path: Path, content: bytes | dict[str, Tensor] | None, words: str
) -> None:
    run, file = Run(tmp_path), tmp_path / "x.safetensors"
    run.write_text()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        save_file(content, file)
    (said,) = run_ranks(1, refused, run, config(model__init=str(file), num_ranks=1))
    assert said.startswith("train.model.init: ")
    assert words in said
    assert str(file) in said


def refused_in_a_home(run: Run) -> str:
    """As on nodes that do not share a file system: the same name, and another file."""
    home = run.root / f"home-{os.environ['RANK']}"
    home.mkdir()
    shift = int(os.environ["RANK"])
    content = load_file(run.root / "weights.safetensors")
    save_file({name: value + shift for name, value in content.items()}, home / "w.safetensors")
    os.chdir(home)
    return refused(run, config(model__init="w.safetensors"))


def test_another_file_on_another_node_is_refused(exported: Path, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    (tmp_path / "weights.safetensors").write_bytes(exported.read_bytes())
    for said in run_ranks(RANKS, refused_in_a_home, run):
        assert "every node must see the same file" in said
        assert "differ in the file of train.model.init" in said
