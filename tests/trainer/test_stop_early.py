"""Stops that are asked for before the first step: while ranks start, load, build and restore."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ranks import end_ranks
from runs import Run, configuration
from trainer import contract, main, signals, state

RANKS = 3
STEPS = 8
CONFIG = configuration(num_ranks=RANKS, steps=STEPS, checkpoint__every_steps=4)


def on_rank(rank: int) -> bool:
    return os.environ["RANK"] == str(rank)


def signal_at_the_start(_run: Run, name: str, _step: int) -> None:
    if name == "start" and on_rank(1):
        os.kill(os.getpid(), signal.SIGUSR1)


def signal_while_loading(_run: Run, name: str, _step: int) -> None:
    if name == "load" and on_rank(2):
        os.kill(os.getpid(), signal.SIGTERM)


def drain_at_the_start(run: Run, name: str, _step: int) -> None:
    if name == "start" and on_rank(0):
        (run.attempt_dir(int(os.environ["ORCHESTRATE_ATTEMPT"])) / "drain").touch()


@pytest.mark.parametrize(
    "listener", [signal_at_the_start, signal_while_loading, drain_at_the_start]
)
@pytest.mark.case("T18")
@pytest.mark.case("T19")
def test_a_first_attempt_ends_as_drained_without_a_checkpoint(
    tmp_path: Path, listener: Any
) -> None:
    run = Run(tmp_path)
    assert run.finish(CONFIG, listener=listener) == "drained"
    assert run.outcome()["step"] == 0
    assert run.checkpoints() == []
    assert [event["outcome"] for event in run.events("end")] == ["drained"]
    assert run.losses() == {}
    *_, booked = map(json.loads, (run.run_dir / "goodput.jsonl").read_text().splitlines())
    assert booked["outcome"] == "drained"


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of which attempt 1 was drained after some steps."""
    run = Run(tmp_path_factory.mktemp("half"))

    def drain(run: Run, name: str, step: int) -> None:
        if (name, step) == ("step", 3):
            (run.attempt_dir() / "drain").touch()

    assert run.finish(CONFIG, listener=drain) == "drained"
    return run


def test_a_later_attempt_keeps_the_step_of_its_checkpoint(half_done: Run) -> None:
    before = half_done.checkpoints()
    assert half_done.finish(CONFIG, attempt=2, listener=signal_while_loading) == "drained"
    assert half_done.outcome(2)["step"] == half_done.outcome(1)["step"]
    assert half_done.checkpoints() == before


def stopped_once_restored(run: Run, attempt: int) -> int:
    """An attempt of which rank 1 gets a signal when its state is restored."""
    restore = state.restore

    def and_ask(*arguments: Any) -> None:
        restore(*arguments)
        if on_rank(1):
            os.kill(os.getpid(), signal.SIGTERM)

    state.restore = and_ask  # type: ignore[assignment]
    os.environ.update(
        ORCHESTRATE_RUN_DIR=str(run.run_dir), ORCHESTRATE_ATTEMPT=str(attempt),
        ORCHESTRATE_CHECKPOINT_DIR=str(run.checkpoint_dir), ORCHESTRATE_WORKDIR=str(run.workdir),
    )  # fmt: skip
    return main.main(["--config", str(run.run_dir / "trainer.json")])


def test_a_stop_while_restoring_makes_no_step(half_done: Run) -> None:
    before, losses = half_done.checkpoints(), half_done.losses()
    half_done.attempt_dir(3).mkdir()
    ended = end_ranks(RANKS, stopped_once_restored, half_done, 3)
    assert [end.value for end in ended] == [0] * RANKS
    assert half_done.outcome(3) == half_done.outcome(1)
    assert half_done.checkpoints() == before
    assert half_done.losses() == losses


def test_a_stop_while_the_model_is_built(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = configuration(num_ranks=2, model__factory="models:asks_to_stop")
    assert run.finish(config) == "drained"
    assert run.outcome()["step"] == 0
    assert run.losses() == {}


def left_alone(_run: Run, name: str, _step: int) -> None:
    """Rank 1 dies before it joins; rank 0 is told to end, as torchrun does then."""
    if name == "start":
        os.kill(os.getpid(), signal.SIGKILL if on_rank(1) else signal.SIGTERM)


def test_a_signal_ends_the_wait_for_a_rank_that_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "START_GRACE_S", 0.5)
    run = Run(tmp_path)
    # With no end to the wait but this one, the test would be killed for its time.
    ended = run.start(configuration(num_ranks=2, step_timeout_s=3000), listener=left_alone)
    assert [end.exit_code for end in ended] == [1, -signal.SIGKILL]
    (error,) = run.errors()
    assert error["kind"] == contract.KIND_FAILURE
    assert "asked to stop, and not all ranks were there 0.5 s later" in error["message"]


def test_a_signal_that_all_ranks_hear_in_time_does_not_end_the_wait(tmp_path: Path) -> None:
    def to_all(_run: Run, name: str, _step: int) -> None:
        if name == "start":
            os.kill(os.getpid(), signal.SIGTERM)

    run = Run(tmp_path)
    assert run.finish(CONFIG, listener=to_all) == "drained"
    assert not signals.received
