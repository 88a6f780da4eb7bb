"""Whole runs on two ranks and more: what comes out, what is equal, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks
from runs import Run, configuration, with_trainer
from trainer.loop import Trainer


def losses_of(folder: Path, **changes: Any) -> dict[int, float]:
    run = Run(folder)
    assert run.finish(configuration(**changes)) == "done"
    return run.losses()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the test configuration as it is."""
    return losses_of(tmp_path_factory.mktemp("plain"))


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(steps=40, checkpoint__every_steps=15, evaluation__every=20)
    assert run.finish(config) == "done"
    assert run.outcome() == {"version": 1, "outcome": "done", "step": 40}
    assert (run.run_dir / "DONE").exists()
    assert run.checkpoints() == [f"step-{s:09d}-attempt-00001" for s in (15, 30, 40)]
    names = [line["event"] for line in run.metrics() if "event" in line]
    assert names == ["start", "validation", "network", "checkpoint", "validation", "checkpoint",
                     "validation", "checkpoint", "sample", "end"]  # fmt: skip
    first, _, last = [event["loss_per_byte"] for event in run.events("validation")]
    assert last < 0.7 * first
    assert run.events("start")[0]["hosts"] == [os.uname().nodename] * 2
    assert run.events("sample")[0]["text"]
    assert sorted(run.losses()) == list(range(1, 41))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish(configuration())
    before = run.metrics()
    assert run.finish(configuration(), attempt=2) == "done"
    assert run.outcome(2) == run.outcome(1)
    assert run.metrics() == before


def test_accumulation_equals_the_whole_batch(tmp_path: Path) -> None:
    whole = losses_of(tmp_path / "whole", batch__micro=6)
    parts = losses_of(tmp_path / "parts", batch__micro=2, batch__accumulation=3)
    assert parts == pytest.approx(whole, rel=1e-6)


def gradients_differ(run: Run, is_last: bool) -> bool:
    """Whether ranks have different gradients after one micro-batch."""

    def compare(trainer: Trainer) -> bool:
        with trainer.parallel.gradient_sync(is_last):
            torch.autograd.backward(trainer._loss(*trainer._next_batch()))
        gradients = [p.grad for p in trainer.parallel.trainable if p.grad is not None]
        mine = torch.cat([gradient.flatten() for gradient in gradients])
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        return not torch.equal(every[0], every[1])

    return bool(with_trainer(run, configuration(), compare))


def test_gradients_are_summed_with_the_last_micro_batch_only(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    assert run_ranks(2, gradients_differ, run, False) == [True, True]
    assert run_ranks(2, gradients_differ, run, True) == [False, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism__activation_checkpointing": "full"},
        {"parallelism__ddp__static_graph": True},
        {"parallelism__ddp__find_unused_parameters": True},
        {"parallelism__ddp__gradient_as_bucket_view": False},
        {"parallelism__ddp__bucket_cap_mb": 25},
        {"parallelism__ddp__broadcast_buffers": True},
        {"data__workers": 1},
        {"num_ranks": 1, "batch__micro": 4},
        {"num_ranks": 1, "batch__accumulation": 2},
        {"num_ranks": 4, "batch__micro": 1},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_it_is_the_same_training(
    plain: dict[int, float], tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert losses_of(tmp_path, **changes) == pytest.approx(plain, rel=1e-6)


def test_static_graph_with_accumulation(tmp_path: Path) -> None:
    changes = {"batch__accumulation": 2, "steps": 4}
    expected = losses_of(tmp_path / "plain", **changes)
    static = losses_of(tmp_path / "static", parallelism__ddp__static_graph=True, **changes)
    assert static == pytest.approx(expected, rel=1e-6)


def test_bf16_is_near(plain: dict[int, float], tmp_path: Path) -> None:
    losses = losses_of(tmp_path, parallelism__precision="bf16")
    assert losses != plain
    assert losses == pytest.approx(plain, rel=0.05)


def test_validation_counts_each_sample_once_on_any_number_of_ranks(tmp_path: Path) -> None:
    found = []
    for ranks in (1, 3):
        run = Run(tmp_path / str(ranks))
        run.finish(configuration(num_ranks=ranks, steps=1))
        found.append(run.events("validation")[0]["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_validation_pass_has_the_memory_of_the_gradients(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(configuration(num_ranks=1, model__factory="models:lean", evaluation__every=2))
    assert len(run.events("validation")) == 4
    assert run.errors() == []


def test_a_users_model_with_buffers_and_unused_parts_resumes_equal(tmp_path: Path) -> None:
    config = configuration(
        num_ranks=4, steps=8, checkpoint__every_steps=4, model__factory="models:words",
        model__args={"unused": True, "norm": True}, parallelism__ddp__find_unused_parameters=True,
    )  # fmt: skip
    straight, again = Run(tmp_path / "straight"), Run(tmp_path / "again")
    straight.finish(config)
    again.finish(config)
    (again.run_dir / "DONE").unlink()
    (again.checkpoint_dir / again.checkpoints()[-1] / "manifest.json").unlink()
    again.finish(config, attempt=2)
    assert again.events("start")[1]["resumed_from"] == "step-000000004-attempt-00001"
    assert again.digest("step-000000008-attempt-00002") == straight.digest()
    assert again.losses() == straight.losses()
    assert not straight.events("sample")


def test_a_loss_that_is_no_number_is_not_saved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(
        steps=20, checkpoint__every_steps=5, logging__every=20, model__factory="models:explodes",
        model__args={"at": 10},
    )  # fmt: skip
    ended = run.start(config)
    assert [end.value for end in ended] == [1, 1]
    assert [error["kind"] for error in run.errors()] == ["configuration"] * 2  # it would come again
    assert all("the gradient norm of step 8 is nan" in error["message"] for error in run.errors())
    assert run.checkpoints() == ["step-000000005-attempt-00001"]


def test_a_validation_loss_that_is_no_number_is_not_saved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = run.start(configuration(model__factory="models:validates_to_nan"))
    assert [end.value for end in ended] == [1, 1]
    assert [error["kind"] for error in run.errors()] == ["configuration"] * 2
    assert "the validation loss of step 0 is nan" in run.errors()[1]["message"]
    assert run.checkpoints() == []


def test_a_metrics_line_holds_a_bounded_number_of_losses(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(
        num_ranks=1, steps=1003, logging__every=10**12, model__factory="models:words",
        checkpoint__every_steps=10**6,
    )  # fmt: skip
    run.finish(config)
    assert [len(line["losses"]) for line in run.metrics() if "losses" in line] == [1000, 3]
    assert sorted(run.losses()) == list(range(1, 1004))


def test_every_generator_is_seeded_before_the_model_is_made(tmp_path: Path) -> None:
    run, again = Run(tmp_path / "run"), Run(tmp_path / "again")
    for each in (run, again):
        each.finish(configuration(model__factory="models:drawn_by_numpy", steps=2))
    assert run.losses() == again.losses()


def test_without_clipping_the_norm_is_still_told(tmp_path: Path) -> None:
    clipped, free = Run(tmp_path / "clipped"), Run(tmp_path / "free")
    clipped.finish(configuration(steps=2, optimizer__clip_norm=1e9))
    free.finish(configuration(steps=2, optimizer__clip_norm=0.0))
    norms = [line["grad_norm"] for run in (clipped, free) for line in run.metrics() if "lr" in line]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def supersede(run: Run, name: str, step: int) -> None:
    if (name, step) == ("save", 4):
        run.attempt_dir(2).mkdir(exist_ok=True)


def test_a_superseded_attempt_publishes_nothing_and_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(configuration(checkpoint__every_steps=4), listener=supersede)
    assert run.checkpoints() == []
    assert "Superseded" in run.errors()[0]["message"]


def test_resume_can_be_turned_off(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish(configuration())
    (run.run_dir / "DONE").unlink()
    run.finish(configuration(checkpoint__resume="never"), attempt=2)
    assert [event["resumed_from"] for event in run.events("start")] == [None, None]
    assert len(run.losses()) == 6  # the same seed gives the same losses


CONFIGURATION_FAULTS: list[Any] = [
    ({"data__paths": ["none/*.txt"]}, "no file matches 'none/*.txt'"),
    ({"parallelism__ddp__hook": "bf16"}, "bf16 fails on gloo"),
    ({"model__factory": "models:unreduced"}, "a loss of shape [2]; it must return the mean loss"),
    ({"model__factory": "models:missing"}, "AttributeError"),
    pytest.param(
        {"device": "cuda"},
        "torch sees 0 GPU(s)",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
    ),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGURATION_FAULTS)
def test_a_fault_of_the_configuration_is_told_as_such(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    run = Run(tmp_path)
    ended = run.start(configuration(**changes))
    assert [end.value for end in ended] == [1, 1]
    assert [error["kind"] for error in run.errors()] == ["configuration"] * 2
    assert all(message in error["message"] for error in run.errors())
    errors = capfd.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_a_fault_on_one_rank_ends_all(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = run.start(configuration(model__factory="models:refused_on_rank_1"))
    assert [end.value for end in ended] == [1, 1]
    assert [error["kind"] for error in run.errors()] == ["failure", "configuration"]


def test_a_failure_is_no_fault_of_the_configuration(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(configuration(model__factory="models:crashes_on_rank_1"))
    assert [error["kind"] for error in run.errors()] == ["failure", "failure"]
    assert run.errors()[1]["message"] == "ConnectionError: no route"


def wrong_world(run: Run) -> int:
    from runs import _rank

    return _rank(run, run.run_dir / "trainer.json", 1, None)


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    import json

    run = Run(tmp_path)
    run.attempt_dir().mkdir(parents=True)
    run.workdir.mkdir()
    (run.run_dir / "trainer.json").write_text(
        json.dumps(configuration(num_ranks=3, world_sizes=[3]))
    )
    assert run_ranks(1, wrong_world, run) == [1]
    assert "rendered for 3 ranks, but WORLD_SIZE is 1" in run.errors()[0]["message"]
