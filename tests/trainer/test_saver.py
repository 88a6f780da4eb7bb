"""Checkpoints that are written beside the training, in each format: the same bits, one at a time,
whole or not there, and the same end on all ranks."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ranks import run_ranks
from runs import Listener, Run, in_group
from saves import (
    FORMATS,
    RANKS,
    STRATEGIES,
    all_contents,
    beside,
    in_thread,
    job,
    on_rank,
    wait_for,
)  # fmt: skip
from trainer import checkpoint
from trainer.loop import Trainer
from trainer.staging import Staged, Staging
from trainer.state import MODEL_FILE, OPTIMIZER_FILE

MANY = [pytest.param(s, f, id=f"{s}-{f}") for s in STRATEGIES for f in FORMATS]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """A run that saves at once and is not interrupted, by strategy and format."""
    done: dict[tuple[str, str], Run] = {}

    def find(strategy: str = "ddp", layout: str = "full") -> Run:
        if (strategy, layout) not in done:
            run = Run(tmp_path_factory.mktemp("straight"))
            assert run.finish(job(strategy, layout)) == "done"
            done[strategy, layout] = run
        return done[strategy, layout]

    return find


def hold_until_the_next_step(run: Run, name: str, step: int) -> None:
    """The thread of rank 0 writes only when the training has gone on."""
    if name == "step" and on_rank(0):
        (run.root / f"step-{step}").touch()
    if name == "save" and in_thread() and on_rank(0):
        wait_for(run.root / f"step-{step + 1}")


@pytest.mark.parametrize(("strategy", "layout"), MANY)
@pytest.mark.case("T22")
def test_what_is_written_beside_the_training_is_what_was(
    straight: Callable[..., Run], tmp_path: Path, strategy: str, layout: str
) -> None:
    run = Run(tmp_path)
    assert run.finish(beside(strategy, layout), listener=hold_until_the_next_step) == "done"
    assert all_contents(run) == all_contents(straight(strategy, layout))
    assert sorted(all_contents(run)) == [2, 4, 6]
    assert run.losses() == straight(strategy, layout).losses()
    told = run.events("checkpoint")
    assert [event["step"] for event in told] == [2, 4, 6]
    assert all(event["blocked_s"] > 0 and event["seconds"] > 0 for event in told)


def kill_the_writer_on(rank: int) -> Listener:
    def kill(_run: Run, name: str, step: int) -> None:
        if (name, step) == ("save", 4) and in_thread() and on_rank(rank):
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def kill_the_publisher(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("publish", 4) and in_thread():
        os.kill(os.getpid(), signal.SIGKILL)


KILLS = [
    pytest.param("ddp", "full", kill_the_writer_on(0), id="full"),
    pytest.param("ddp", "full", kill_the_publisher, id="full, publishing"),
    pytest.param("full_shard", "sharded", kill_the_writer_on(0), id="sharded"),
    pytest.param("full_shard", "sharded", kill_the_writer_on(1), id="sharded, second rank"),
    pytest.param("full_shard", "both", kill_the_publisher, id="both, publishing"),
]


@pytest.mark.parametrize(("strategy", "layout", "listener"), KILLS)
@pytest.mark.case("T15")
def test_a_kill_while_writing_leaves_the_one_before(
    straight: Callable[..., Run], tmp_path: Path, strategy: str, layout: str, listener: Listener
) -> None:
    run = Run(tmp_path)
    config = beside(strategy, layout)
    ended = run.start(config, listener=listener)
    assert -signal.SIGKILL in [end.exit_code for end in ended]
    assert run.checkpoints() == ["step-000000002-attempt-00001"]
    assert run.finish(config, attempt=2) == "done"
    assert run.events("start")[1]["resumed_from"] == "step-000000002-attempt-00001"
    assert all_contents(run) == all_contents(straight(strategy, layout))
    assert run.losses() == straight(strategy, layout).losses()
    assert not [path for path in run.checkpoint_dir.iterdir() if path.name.startswith(".")]


def die_while_the_other_writes(run: Run, name: str, step: int) -> None:
    if (name, step) == ("step", 3) and on_rank(1):
        (run.root / "dying").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if (name, step) == ("publish", 2) and in_thread():
        wait_for(run.root / "dying")
        time.sleep(1)  # the training of this rank fails meanwhile


def test_what_is_nearly_written_when_the_training_fails_is_published(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = run.start(beside(), listener=die_while_the_other_writes)
    assert [end.exit_code for end in ended] == [0, -signal.SIGKILL]
    assert ended[0].value == 1
    assert sorted(all_contents(run)) == [2]
    assert [event["step"] for event in run.events("checkpoint")] == [2]


def note(run: Run, name: str, step: int) -> None:
    """The order in which rank 0 writes, in both threads."""
    writes = name in ("publish", "prune", "exit") or (name == "save" and in_thread())
    if on_rank(0) and writes:
        with (run.root / "order").open("a") as file:
            file.write(f"{'beside' if in_thread() else 'main'} {name} {step}\n")
    if in_thread() and name == "publish":
        time.sleep(0.2)  # a save that did not wait would come in between


@pytest.mark.parametrize("layout", ["full", "sharded"])
@pytest.mark.case("T16")
def test_one_at_a_time_and_none_is_removed_before_it_is_published(
    tmp_path: Path, layout: str
) -> None:
    run = Run(tmp_path)

    def look(run: Run, name: str, step: int) -> None:
        note(run, name, step)
        if name in ("publish", "prune") and on_rank(0):
            (run.root / f"{name}-{step}").write_text(" ".join(run.checkpoints()))

    config = beside("ddp", layout, checkpoint__keep=1, checkpoint__every_steps=1, steps=3)
    assert run.finish(config, listener=look) == "done"
    order = (run.root / "order").read_text().splitlines()
    written = ("beside save", "beside publish", "beside prune")
    last = ["main publish 3", "main prune 3", "main exit 3"]
    assert order == [f"{what} {step}" for step in (1, 2) for what in written] + last
    names = {step: checkpoint.name_of(step, 1) for step in (1, 2, 3)}
    for step in (2, 3):
        assert (run.root / f"publish-{step}").read_text() == names[step - 1]
        assert (run.root / f"prune-{step}").read_text() == f"{names[step - 1]} {names[step]}"
    assert run.checkpoints() == [names[3]]


def gathered(run: Run, aside: bool) -> tuple[int, int, int]:
    """How many whole tensors this rank has at a time, its files, and the copies that it keeps."""

    def use(trainer: Trainer) -> tuple[int, int, int]:
        trainer.advance()
        layout, alive, most = trainer.parallel.layout, [], 0
        make_whole = layout.whole

        def whole(name: str, part: Tensor) -> Tensor:
            nonlocal most
            tensor = make_whole(name, part)
            alive.append(weakref.ref(tensor))
            most = max(most, sum(ref() is not None for ref in alive))
            return tensor

        layout.whole = whole  # type: ignore[method-assign]
        stage = Staging(
            trainer.parallel, trainer.optimizer, trainer.settings, trainer.peers, "full"
        )
        staged = stage(trainer.progress, aside=aside)
        return most, len(staged.parts), len(stage._buffers)

    config = job("full_shard", model__dropout=0.0)
    found: tuple[int, int, int] = in_group(run, [config], use)[0]
    return found


@pytest.mark.case("T24")
def test_ranks_gather_one_tensor_at_a_time_and_keep_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    run.attempt_dir().mkdir(parents=True)
    # gloo's thread may let go of a tensor only when the next one is there already.
    first, other = run_ranks(RANKS, gathered, run, True)
    assert first[0] <= 2
    assert first[1] == 3
    assert first[2] > 4 * 10  # a weight, its two moments and its number of steps
    assert other[0] <= 2
    assert other[1:] == (0, 0)
    first, other = run_ranks(RANKS, gathered, run, False)
    assert first[0] > 4 * 10  # it keeps all, to write them now
    assert first[1:] == (3, 0)
    assert other[0] <= 2
    assert other[1:] == (0, 0)


def tensors(staged: Staged) -> list[Tensor]:
    """The weights of a model and their moments."""
    weights: Any = staged.parts[MODEL_FILE]
    moments: Any = staged.parts[OPTIMIZER_FILE]
    return [*weights.values(), *(state["exp_avg"] for state in moments["state"].values())]


def staged_twice(run: Run) -> tuple[list[int], list[int], bool]:
    """Where a save beside the training has its tensors, where the next one at once has them, and
    whether that one has what the training had come to."""

    def use(trainer: Trainer) -> tuple[list[int], list[int], bool]:
        stage = Staging(
            trainer.parallel, trainer.optimizer, trainer.settings, trainer.peers, "full"
        )
        trainer.advance()
        aside = tensors(stage(trainer.progress, aside=True))
        before = [tensor.clone() for tensor in aside]
        trainer.advance()
        last = tensors(stage(trainer.progress, aside=False))
        is_new = not any(map(torch.equal, before, last))
        return [t.data_ptr() for t in aside], [t.data_ptr() for t in last], is_new

    config = job(num_ranks=1, model__dropout=0.0)
    found: tuple[list[int], list[int], bool] = in_group(run, [config], use)[0]
    return found


def test_the_last_save_needs_no_more_memory_than_those_before(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    run.attempt_dir().mkdir(parents=True)
    ((aside, last, is_new),) = run_ranks(1, staged_twice, run)
    assert last == aside
    assert is_new
