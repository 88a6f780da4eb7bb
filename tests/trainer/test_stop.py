"""Stopping: every rank at the same step, with a checkpoint of that step."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from ranks import run_ranks
from runs import Run, configuration
from trainer import signals
from trainer.stop import KEY, StopProtocol

CPU = torch.device("cpu")
RANKS = 3
STEPS = 12


def on_rank(rank: int) -> bool:
    return os.environ["RANK"] == str(rank)


def terminate(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("step", 4) and on_rank(2):
        os.kill(os.getpid(), signal.SIGTERM)


def user_signal_everywhere(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("step", 4):
        os.kill(os.getpid(), signal.SIGUSR1)


def drain_in_evaluation(run: Run, name: str, step: int) -> None:
    if (name, step) == ("evaluation", 6) and on_rank(1):
        (run.attempt_dir() / "drain").touch()


def drain_in_last_evaluation(run: Run, name: str, step: int) -> None:
    if (name, step) == ("evaluation", STEPS) and on_rank(1):
        (run.attempt_dir() / "drain").touch()


def drain_in_first_evaluation(run: Run, name: str, step: int) -> None:
    if (name, step) == ("evaluation", 0) and on_rank(0):
        (run.attempt_dir() / "drain").touch()


def drain_while_saving(run: Run, name: str, step: int) -> None:
    if (name, step) == ("publish", 3):
        (run.attempt_dir() / "drain").touch()


config = configuration(num_ranks=RANKS, steps=STEPS, evaluation__every=6, checkpoint__every_steps=3)


def validations(run: Run) -> list[tuple[int, float]]:
    return [(event["step"], event["loss"]) for event in run.events("validation")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("straight"))
    run.finish(config)
    return run


@pytest.mark.parametrize(
    ("listener", "steps"),
    [(terminate, {6}), (user_signal_everywhere, {6}), (drain_in_evaluation, {6}),
     (drain_while_saving, {4, 5}), (drain_in_last_evaluation, {STEPS})],
)  # fmt: skip
@pytest.mark.case("L14")
@pytest.mark.case("T18")
@pytest.mark.case("T19")
def test_all_ranks_stop_together_and_the_next_attempt_goes_on(
    straight: Run, tmp_path: Path, listener: object, steps: set[int]
) -> None:
    run = Run(tmp_path)
    assert run.finish(config, listener=listener) == "drained"  # type: ignore[arg-type]
    stopped = run.outcome()["step"]
    assert stopped in steps
    assert run.checkpoints()[-1] == f"step-{stopped:09d}-attempt-00001"
    assert not (run.run_dir / "DONE").exists()
    assert run.finish(config, attempt=2) == "done"
    assert run.losses() == straight.losses()
    assert validations(run) == validations(straight)


def test_a_stop_before_the_first_step_leaves_nothing_to_continue(
    straight: Run, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    assert run.finish(config, listener=drain_in_first_evaluation) == "drained"
    assert run.outcome()["step"] == 0
    assert run.checkpoints() == []
    assert run.finish(config, attempt=2) == "done"
    assert validations(run) == validations(straight)


def test_a_drain_of_an_earlier_attempt_is_not_seen(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.attempt_dir(1).mkdir(parents=True)
    (run.attempt_dir(1) / "drain").touch()
    assert run.finish(config, attempt=2) == "done"


def test_the_first_announcement_counts(tmp_path: Path) -> None:
    store = HashStore()
    one, other = (StopProtocol(store, tmp_path / name, CPU) for name in ("one", "other"))
    one.before_step(1)
    assert not one.after_step(1)
    (tmp_path / "one").touch()
    one.before_step(2)
    (tmp_path / "other").touch()
    other.before_step(3)
    assert not other.after_step(1)
    assert one.after_step(2)
    assert other.after_step(2)


def signalled() -> bool:
    stop = StopProtocol(HashStore(), Path("/none"), CPU)
    signals.handle()
    before = stop.requested()
    os.kill(os.getpid(), signal.SIGTERM)
    return not before and stop.requested()


def test_a_signal_asks_for_a_stop_and_does_not_kill() -> None:
    assert run_ranks(1, signalled) == [True]


def test_short_steps_are_read_in_paces_and_a_stop_waits_for_the_next(tmp_path: Path) -> None:
    stop = StopProtocol(HashStore(), tmp_path / "drain", CPU)
    stop.set_pace(0.005)
    (tmp_path / "drain").touch()
    stop.before_step(5)
    assert [step for step in range(5, 13) if stop.after_step(step)] == [8, 12]


@pytest.mark.parametrize("step_s", [0.02, 1.0, 1e9])
def test_long_steps_are_read_each(tmp_path: Path, step_s: float) -> None:
    stop = StopProtocol(HashStore(), tmp_path / "drain", CPU)
    stop.set_pace(step_s)
    (tmp_path / "drain").touch()
    stop.before_step(5)
    assert stop.after_step(5)


class Counting(HashStore):
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return bool(super().check(keys))

    def get(self, key: str) -> bytes:
        self.asked += 1
        return bytes(super().get(key))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.asked += 1
        return bytes(super().compare_set(key, expected, desired))


def test_an_ordinary_step_costs_one_look_up() -> None:
    store = Counting()
    stop = StopProtocol(store, Path("/none"), CPU)
    for step in range(1, 11):
        stop.before_step(step)
        assert stop.after_step(step) is None
    assert store.asked == 10


def test_a_save_is_asked_for_by_one_rank_and_made_by_all(tmp_path: Path) -> None:
    store = HashStore()
    one, other = (StopProtocol(store, tmp_path / "drain", CPU) for _ in range(2))
    agreed = []
    for step in range(1, 8):
        one.before_step(step, save_due=step in (2, 5, 6))
        other.before_step(step)
        agreed.append((one.after_step(step), other.after_step(step)))
    assert [step for step, (what, _) in enumerate(agreed, 1) if what == "save"] == [2, 5, 6]
    assert all(mine == theirs for mine, theirs in agreed)


def test_a_stop_that_comes_while_a_save_is_agreed_follows_it(tmp_path: Path) -> None:
    store = HashStore()
    one, other = (StopProtocol(store, tmp_path / name, CPU) for name in ("one", "other"))
    for stop in (one, other):
        stop.set_pace(0.005)  # looks after steps 4, 8, 12
    one.before_step(5, save_due=True)
    (tmp_path / "other").touch()
    agreed = []
    for step in range(5, 13):
        for stop in (one, other):
            stop.before_step(step)
        agreed.append((one.after_step(step), other.after_step(step)))
    assert [agreed[step - 5] for step in (8, 12)] == [("save", "save"), ("stop", "stop")]
    assert sum(pair != (None, None) for pair in agreed) == 2
    assert store.get(f"{KEY}/1") == b"stop 9"


def test_a_save_that_comes_while_a_stop_is_agreed_is_left_out(tmp_path: Path) -> None:
    store = HashStore()
    one, other = (StopProtocol(store, tmp_path / name, CPU) for name in ("one", "other"))
    (tmp_path / "other").touch()
    other.before_step(3)
    one.before_step(3, save_due=True)
    assert one.after_step(3) == other.after_step(3) == "stop"
