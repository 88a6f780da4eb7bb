"""Checkpoints that are written beside the training, in each format: the same bits, one at a time,
whole or not there, and the same end on all ranks."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import Listener, Run, configuration
from trainer import checkpoint
from trainer.shards import METADATA, Shards

RANKS, STEPS, EVERY = 2, 6, 2
FORMATS = ("full", "sharded", "both")
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "full_shard": {"parallelism__strategy": "full_shard"},
}  # fmt: skip
MANY = [pytest.param(s, f, id=f"{s}-{f}") for s in STRATEGIES for f in FORMATS]


def job(strategy: str = "ddp", layout: str = "full", **changes: Any) -> dict[str, Any]:
    """A run with dropout, so that random states count, and all of its checkpoints."""
    given: dict[str, Any] = {
        "num_ranks": RANKS, "steps": STEPS, "model__dropout": 0.1, "checkpoint__keep": 10,
        "checkpoint__every_steps": EVERY, "checkpoint__format": layout,
        **STRATEGIES[strategy],
    }  # fmt: skip
    return configuration(**(given | changes))


def beside(strategy: str = "ddp", layout: str = "full", **changes: Any) -> dict[str, Any]:
    return job(strategy, layout, checkpoint__asynchronous=True, **changes)


def in_thread() -> bool:
    return threading.current_thread() is not threading.main_thread()


def on_rank(rank: int) -> bool:
    return os.environ["RANK"] == str(rank)


def wait_for(path: Path, timeout_s: float = 60) -> None:
    """Return once the file is there; the rank ends if it never is."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)


def contents(run: Run, name: str) -> str:
    """A hash of all that a checkpoint holds, in the form of its format."""
    folder = run.checkpoint_dir / name
    manifest = checkpoint.verify(folder)
    parts = sorted(name for name in manifest.files if name.endswith(".pt"))
    digest = hashlib.sha256(run.digest(name, parts).encode())
    if METADATA in manifest.files:
        shards = Shards(folder)
        for tensor in sorted(shards.shapes):
            digest.update(f"{tensor} {shards.shapes[tensor]}".encode())
            digest.update(shards.whole(tensor).numpy().tobytes())
    return digest.hexdigest()


def all_contents(run: Run) -> dict[int, str]:
    """The contents of each checkpoint by the steps that were done, of any attempt."""
    return {int(name[5:14]): contents(run, name) for name in run.checkpoints()}


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
    assert all(0 < event["blocked_s"] <= event["seconds"] for event in told)


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


def note(run: Run, name: str, step: int) -> None:
    """The order of what rank 0 does, in both threads."""
    if on_rank(0) and name in ("save", "publish", "prune", "exit"):
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
    expected = [
        line
        for step in (1, 2)
        for line in (
            f"main save {step}",
            *(f"beside {name} {step}" for name in ("save", "publish", "prune")),
        )
    ]  # fmt: skip
    assert order == [
        *expected,
        *["main save 3"] * 2,
        "main publish 3",
        "main prune 3",
        "main exit 3",
    ]
    names = {step: checkpoint.name_of(step, 1) for step in (1, 2, 3)}
    for step in (2, 3):
        assert (run.root / f"publish-{step}").read_text() == names[step - 1]
        assert (run.root / f"prune-{step}").read_text() == f"{names[step - 1]} {names[step]}"
    assert run.checkpoints() == [names[3]]
