"""Resuming is equal to going straight through: the same bits and the same loss at every step.

On 4 ranks with several buckets: with 2 ranks a sum cannot depend on the order of the ranks, and
with one bucket DDP has nothing to rebuild.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from ranks import run_ranks
from runs import Run, configuration, with_trainer
from trainer import checkpoint, state
from trainer.loop import Trainer

RANKS = 4
STEPS = 30


def exact(**changes: object) -> dict[str, object]:
    """A configuration with dropout, so that random states count too."""
    return configuration(
        num_ranks=RANKS, steps=STEPS, model__dropout=0.1, model__width=64,
        checkpoint__every_steps=STEPS // 2, **changes,
    )  # fmt: skip


def kill_at(_run: Run, name: str, step: int) -> None:
    if name == "step" and step == 20 and os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL)


def kill_publishing(_run: Run, name: str, step: int) -> None:
    if name == "publish" and step == STEPS:
        os.kill(os.getpid(), signal.SIGKILL)


def drain_at(run: Run, name: str, step: int) -> None:
    if name == "step" and step == 11 and os.environ["RANK"] == "3":
        (run.attempt_dir(1) / "drain").touch()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("straight"))
    assert run.finish(exact()) == "done"
    return run


def count_buckets(run: Run) -> int:
    def count(trainer: Trainer) -> int:
        model = trainer.parallel.model
        assert isinstance(model, DistributedDataParallel)
        return len(model.reducer._get_zeros_like_grad_buckets())

    return int(with_trainer(run, exact(), count))


def test_there_are_several_buckets(straight: Run) -> None:
    assert min(run_ranks(RANKS, count_buckets, straight)) >= 3


@pytest.mark.case("L18")
def test_after_a_kill(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = run.start(exact(), listener=kill_at)
    assert ended[2].exit_code == -signal.SIGKILL
    assert all(error["kind"] == "failure" for error in run.errors())
    assert run.finish(exact(), attempt=2) == "done"
    assert run.events("start")[1]["resumed_from"] == "step-000000015-attempt-00001"
    assert run.losses() == straight.losses()
    assert sorted(run.losses()) == list(range(1, STEPS + 1))
    assert run.digest() == straight.digest()


def test_after_a_drain(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.finish(exact(), listener=drain_at) == "drained"
    stopped = run.outcome()["step"]
    assert stopped in (12, 13)  # the file appeared in step 12; a rank ahead sees it in that step
    assert run.finish(exact(), attempt=2) == "done"
    assert run.losses() == straight.losses()
    assert run.digest() == straight.digest()


@pytest.mark.case("L19")
def test_a_checkpoint_that_was_not_published_does_not_exist(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(exact(), listener=kill_publishing)
    assert run.checkpoints() == ["step-000000015-attempt-00001"]
    left = [path.name for path in run.checkpoint_dir.iterdir() if path.name.startswith(".tmp-")]
    assert left == [".tmp-step-000000030-attempt-00001"]
    assert run.finish(exact(), attempt=2) == "done"
    assert run.digest() == straight.digest()
    assert not [path for path in run.checkpoint_dir.iterdir() if path.name.startswith(".")]


@pytest.mark.case("L19")
def test_a_broken_newest_checkpoint_is_passed_over(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = exact(checkpoint__keep=10)
    run.finish(config)
    (run.run_dir / "DONE").unlink()
    newest = run.checkpoint_dir / run.checkpoints()[-1] / "model.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.raises(checkpoint.BrokenCheckpoint, match="SHA-256"):
        checkpoint.verify(newest.parent)
    assert run.finish(config, attempt=2) == "done"
    assert run.events("start")[1]["resumed_from"] == "step-000000015-attempt-00001"
    assert run.digest("step-000000030-attempt-00002") == straight.digest()
    assert run.losses() == straight.losses()


def test_a_loss_does_not_depend_on_what_is_reported_with_it(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish(exact(logging__every=7))
    assert run.losses() == straight.losses()


def test_with_loader_workers(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = exact(data__workers=1)
    assert run.finish(config, listener=drain_at) == "drained"
    assert run.finish(config, attempt=2) == "done"
    assert run.losses() == straight.losses()
    assert run.digest() == straight.digest()


def test_another_world_size_takes_the_same_samples(tmp_path: Path) -> None:
    """Half the ranks with twice the micro-batch: the same batches, so losses equal to 1e-6."""
    four, two = Run(tmp_path / "four"), Run(tmp_path / "two")
    config = exact() | {"num_ranks": RANKS}
    config["model"] = {**configuration()["model"], "width": 64}
    four.finish(config)
    two.finish(config, listener=drain_at)
    halved = config | {"num_ranks": RANKS // 2, "batch": {"micro": 4, "accumulation": 1}}
    assert two.finish(halved, attempt=2) == "done"
    expected = four.losses()
    assert two.losses() == pytest.approx(expected, rel=1e-6)


def random_words(run: Run) -> tuple[bool, bytes]:
    """Whether this rank goes on with its own random state, and that state."""

    def read(trainer: Trainer) -> tuple[bool, bytes]:
        own = state.random_state(trainer.device)
        saved = state.load(run.checkpoint_dir / str(trainer.resumed_from)).random_states
        mine = saved[trainer.contract.rank]
        same = torch.equal(own["torch"], mine["torch"]) and own["python"] == mine["python"]
        return same, own["torch"].numpy().tobytes()

    found: tuple[bool, bytes] = with_trainer(run, exact(), read)
    return found


@pytest.mark.case("T14")
def test_each_rank_goes_on_with_its_own_random_state(straight: Run) -> None:
    found = run_ranks(RANKS, random_words, straight)
    assert [own for own, _ in found] == [True] * RANKS
    assert len({words for _, words in found}) == RANKS
