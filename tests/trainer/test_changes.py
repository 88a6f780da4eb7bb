"""A run that goes on with another job file: what is refused, what is told, what takes effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ranks import run_ranks
from runs import TEXT, Run, configuration, with_trainer
from trainer import checkpoint, state
from trainer.changes import Change, compare, fingerprint, refuse
from trainer.contract import ConfigurationError
from trainer.loop import Trainer
from trainer.parallelized import Parallelized
from trainer.samples import Synthetic


@pytest.fixture
def stopped(tmp_path: Path) -> Run:
    """A run of 6 steps, made to go on."""
    run = Run(tmp_path)
    run.finish(configuration())
    (run.run_dir / "DONE").unlink()
    return run


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__width": 64}, "train.model.width was 32 and is 64"),
        ({"model__heads": 4}, "train.model.heads was 2 and is 4"),  # the shapes are the same
        ({"model__context": 8}, "train.model.context was 16 and is 8"),
        ({"model__vocab_size": 300}, "train.model.vocab_size was 256 and is 300"),
        ({"model__tied": False}, "train.model.tied was true and is false"),
        ({"model__factory": "models:words"}, 'train.model.factory was null and is "models:words"'),
        ({"steps": 4}, "set train.steps to 6 or more"),
    ],
)
def test_what_cannot_go_on_is_refused(stopped: Run, changes: dict[str, Any], words: str) -> None:
    ended = stopped.start(configuration(**changes), attempt=2)
    assert [end.value for end in ended] == [1, 1]
    errors = stopped.errors(2)
    assert [error["kind"] for error in errors] == ["configuration"] * 2
    assert words in errors[0]["message"]
    assert "step-000000006-attempt-00001" in errors[0]["message"]
    assert "--fresh" in errors[0]["message"]


def test_fewer_steps_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"has 6 steps done, and train\.steps is 4"):
        refuse(Path("step-000000006-attempt-00001"), [], 6, 4)
    refuse(Path("x"), [Change("train.seed", 1, 2)], 6, 6)


def test_another_code_of_the_model_is_refused_in_few_words(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(model__factory="models:words", model__args={"norm": True})
    run.finish(config)
    (run.run_dir / "DONE").unlink()
    saved = run.checkpoint_dir / run.checkpoints()[-1]
    leave_out(saved, "head.weight")
    run.start(config, attempt=2)
    message = run.errors(2)[0]["message"]
    assert message.startswith("undo the change of train.model or of its code")
    assert "head.weight" in message
    assert len(message) < 500


class NoMemory:
    """A model on a device that has no memory left."""

    def load_weights(self, _content: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("out of memory")


def test_an_error_of_the_device_is_no_misfit(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "model.pt")
    saved = state.Saved(tmp_path, state.Progress(), {}, [])
    optimizer = torch.optim.SGD([torch.zeros(1)])
    with pytest.raises(torch.OutOfMemoryError):
        state.restore(saved, cast(Parallelized, NoMemory()), optimizer, torch.device("cpu"), 1)


def leave_out(folder: Path, name: str) -> None:
    """Publish the checkpoint again without one of its tensors."""
    weights = checkpoint.load_part(folder, "model.pt")
    del weights[name]
    torch.save(weights, folder / "model.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.pt"] = {
        "size_bytes": (folder / "model.pt").stat().st_size,
        "sha256": checkpoint.sha256_of(folder / "model.pt"),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_same_job_says_nothing(stopped: Run, capfd: pytest.CaptureFixture[str]) -> None:
    stopped.finish(configuration(model__vocab_size=256, data__workers=1), attempt=2)
    assert stopped.events("changed") == []
    assert capfd.readouterr().err == ""


def test_what_may_change_is_told(stopped: Run, capfd: pytest.CaptureFixture[str]) -> None:
    (stopped.workdir / "b.txt").write_text(TEXT)
    config = configuration(
        steps=8, seed=8, optimizer__lr=2e-2, batch__micro=3, model__dropout=0.1,
        schedule__warmup_steps=0,
    )  # fmt: skip
    assert stopped.finish(config, attempt=2) == "done"
    (event,) = stopped.events("changed")
    assert event["resumed_from"] == "step-000000006-attempt-00001"
    told = {change["key"]: (change["old"], change["new"]) for change in event["changes"]}
    assert set(told) == {
        "train.model.dropout", "train.optimizer.lr", "train.schedule.warmup_steps",
        "train.batch.micro", "train.steps", "train.seed", "contents of train.data",
    }  # fmt: skip
    assert told["train.seed"] == (7, 8)
    errors = capfd.readouterr().err
    assert (
        errors.count("changed since step-000000006-attempt-00001: train.seed was 7 and is 8") == 1
    )


def options(run: Run, config: dict[str, Any]) -> list[dict[str, Any]]:
    def read(trainer: Trainer) -> list[dict[str, Any]]:
        names = ("weight_decay", "betas", "eps")
        return [{name: group[name] for name in names} for group in trainer.optimizer.param_groups]

    found: list[dict[str, Any]] = with_trainer(run, config, read)
    return found


def test_the_optimizer_has_the_options_of_the_new_job(stopped: Run) -> None:
    config = configuration(
        optimizer__weight_decay=0.3, optimizer__betas=[0.8, 0.9], optimizer__eps=1e-6
    )
    expected = [{"weight_decay": decay, "betas": (0.8, 0.9), "eps": 1e-6} for decay in (0.3, 0.0)]
    assert run_ranks(2, options, stopped, config) == [expected] * 2


def test_a_key_of_another_version_is_no_change() -> None:
    assert compare({"a": 1, "gone": 2}, {"a": 1, "new": 3}) == []
    assert compare({}, {"a": 1}) == []
    assert compare({"a": 1}, {"a": 2}) == [Change("a", 1, 2)]


def test_the_fingerprint_sees_other_contents_of_the_same_length() -> None:
    one, other = (Synthetic(range(500), 8, 256, seed) for seed in (1, 2))
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one).startswith("500 windows, ")
    assert fingerprint(Synthetic(range(1), 8, 256, 1)).startswith("1 windows, ")


def test_broken_checkpoints_are_told(stopped: Run, capfd: pytest.CaptureFixture[str]) -> None:
    name = stopped.checkpoints()[0]
    (stopped.checkpoint_dir / name / "model.pt").write_bytes(b"")
    assert stopped.finish(configuration(), attempt=2) == "done"
    (event,) = stopped.events("broken")
    assert event["path"] == name
    assert "model.pt does not have" in event["reason"]
    assert stopped.events("start")[1]["resumed_from"] is None
    errors = capfd.readouterr().err
    assert errors.count("passed over a broken checkpoint") == 1
    assert "no checkpoint is whole: training from step 0" in errors


def test_the_last_validation_speaks_for_the_checkpoint_after_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(
        steps=11, evaluation__every=4, checkpoint__every_steps=3, checkpoint__keep=10
    )
    run.finish(config)
    found = {}
    for name in run.checkpoints():
        manifest = checkpoint.verify(run.checkpoint_dir / name)
        found[manifest.step] = (manifest.validation_step, manifest.validation_loss)
    losses = {event["step"]: event["loss"] for event in run.events("validation")}
    assert found == {
        3: (None, None),  # step 0 has been validated, but that was another model
        6: (4, losses[4]),
        9: (8, losses[8]),
        11: (11, losses[11]),
    }
