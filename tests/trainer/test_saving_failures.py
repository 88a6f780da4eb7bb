"""Checkpoints that cannot be written: a clear error on all ranks, the one before as it was."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running import wait_until
from runs import Listener, Run
from saves import all_contents, beside, in_thread, job, on_rank, wait_for
from trainer import phase
from trainer.checkpoint import name_of

SECOND, FOURTH = name_of(2, 1), name_of(4, 1)
FAILING_STEP, MENDED_STEP = 3, 5  # steps done when the disk begins to refuse, and ends to

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, or takes an id")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Run]:
    """A run whose checkpoints lie on a disk of their own, of 8 MiB."""
    run = Run(tmp_path)
    run.checkpoint_dir.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(run.checkpoint_dir))
    yield run
    subprocess.run(["umount", "--lazy", str(run.checkpoint_dir)], check=True)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=60)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


def begins_on(rank: int, run: Run, name: str, step: int) -> bool:
    """Whether it is time for a rank to break something: when the first checkpoint is there."""
    if (name, step) != ("step", FAILING_STEP) or not on_rank(rank):
        return False
    wait_for(run.checkpoint_dir / SECOND)
    return True


def fill_disk(run: Run, name: str, step: int) -> None:
    if begins_on(0, run, name, step):
        fill(run.checkpoint_dir)


def fill_disk_for_a_while(run: Run, name: str, step: int) -> None:
    fill_disk(run, name, step)
    if (name, step) == ("step", MENDED_STEP) and on_rank(0):
        (run.checkpoint_dir / "ballast").unlink()


def make_read_only(run: Run, name: str, step: int) -> None:
    if begins_on(0, run, name, step):
        mount("-o", "remount,ro", str(run.checkpoint_dir))


def take_away(run: Run, name: str, step: int) -> None:
    if begins_on(0, run, name, step):
        run.checkpoint_dir.rename(run.root / "gone")


def limit_second_rank(run: Run, name: str, step: int) -> None:
    """From now on rank 1 can write no file of more than 20 kB; the signal of it is ignored."""
    if begins_on(1, run, name, step):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    if (name, step) == ("step", MENDED_STEP) and on_rank(1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def matches(words: str, said: str) -> None:
    assert re.search(words, said), said


def failed(run: Run, config: dict[str, Any], listener: Listener | None) -> str:
    """What both ranks of a failed attempt say."""
    ended = run.start(config, listener=listener)
    assert [end.value for end in ended] == [1, 1], ended
    first, second = run.errors()
    assert (first["kind"], second["kind"]) == ("failure", "failure")
    assert first["message"] == second["message"]
    return str(first["message"])


REFUSED = [
    pytest.param(job(), fill_disk, "rank 0 on .*: No space left on device", id="full"),
    pytest.param(beside(), fill_disk, "rank 0 on .*: No space left on device", id="full beside"),
    pytest.param(beside("ddp", "sharded"), fill_disk, "No space left on device", id="shards"),
    pytest.param(job(), make_read_only, "rank 0 on .*: Read-only file system", id="read-only"),
    pytest.param(job("ddp", "both"), limit_second_rank, "rank 1 .*: File too large", id="one rank"),
]


@needs_root
@pytest.mark.parametrize(("config", "listener", "words"), REFUSED)
@pytest.mark.case("T15")
def test_a_disk_that_refuses_ends_the_attempt_on_all_ranks(
    small_disk: Run, config: dict[str, Any], listener: Listener, words: str
) -> None:
    said = failed(small_disk, config, listener)
    assert f"checkpoint {small_disk.checkpoint_dir / FOURTH} could not be written" in said
    assert " bytes are free in " in said
    matches(words, said)
    assert small_disk.checkpoints() == [SECOND]
    assert sorted(all_contents(small_disk)) == [2]
    left = {path.name for path in small_disk.checkpoint_dir.iterdir()}
    assert left - {"ballast"} == {SECOND}
    mount("-o", "remount,rw", str(small_disk.checkpoint_dir))
    (small_disk.checkpoint_dir / "ballast").unlink(missing_ok=True)
    assert small_disk.finish(config, attempt=2) == "done"
    assert small_disk.events("start")[1]["resumed_from"] == SECOND


@needs_root
@pytest.mark.parametrize(
    ("config", "listener"),
    [(job(), fill_disk_for_a_while), (job("ddp", "sharded"), limit_second_rank)],
)
def test_it_goes_on_where_that_is_wanted(
    small_disk: Run, config: dict[str, Any], listener: Listener
) -> None:
    config["checkpoint"]["on_failure"] = "continue"
    assert small_disk.finish(config, listener=listener) == "done"
    (told,) = small_disk.events("checkpoint_failed")
    assert told["step"] == 4
    assert FOURTH in told["reason"]
    assert [event["step"] for event in small_disk.events("checkpoint")] == [2, 6]
    assert sorted(all_contents(small_disk)) == [2, 6]


@needs_root
def test_the_last_one_must_be_written_all_the_same(small_disk: Run) -> None:
    config = beside(checkpoint__on_failure="continue")
    said = failed(small_disk, config, fill_disk)
    assert name_of(6, 1) in said
    assert [event["step"] for event in small_disk.events("checkpoint_failed")] == [4]
    assert sorted(all_contents(small_disk)) == [2]


def test_a_folder_that_vanishes_is_not_made_anew(tmp_path: Path) -> None:
    run = Run(tmp_path)
    said = failed(run, job(), take_away)
    matches(f"could not be written: rank 0 on .*{FOURTH}: No such file or directory", said)
    assert not run.checkpoint_dir.exists()
    (run.root / "gone").rename(run.checkpoint_dir)
    assert run.finish(job(), attempt=2) == "done"
    assert run.events("start")[1]["resumed_from"] == SECOND


@pytest.mark.parametrize(
    "config", [beside(), beside("ddp", "both", checkpoint__on_failure="continue")]
)
def test_of_two_attempts_only_the_newer_publishes(tmp_path: Path, config: dict[str, Any]) -> None:
    def supersede(run: Run, name: str, step: int) -> None:
        if (name, step) == ("save", 4) and in_thread():
            run.attempt_dir(2).mkdir(parents=True, exist_ok=True)

    run = Run(tmp_path)
    assert "Superseded: attempt 1 is superseded" in failed(run, config, supersede)
    assert [path.name for path in run.checkpoint_dir.iterdir()] == [SECOND]


def hold_the_writer(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("publish", 2):
        time.sleep(12)  # a slow disk; longer than timeouts.step in every use


@pytest.mark.parametrize("make", [job, beside])
@pytest.mark.case("T25")
def test_a_save_may_take_longer_than_a_step(tmp_path: Path, make: Any) -> None:
    run = Run(tmp_path)
    assert run.finish(make(step_timeout_s=5), listener=hold_the_writer) == "done"
    assert sorted(all_contents(run)) == [2, 4, 6]


def hold_until_the_other_gives_up(run: Run, name: str, step: int) -> None:
    if (name, step) == ("publish", 2):
        wait_for(run.attempt_dir() / "errors" / "rank-00001.json")


@pytest.mark.case("T25")
def test_a_save_aside_that_takes_too_long_ends_the_attempt(tmp_path: Path) -> None:
    run = Run(tmp_path)
    ended = run.start(beside(checkpoint__timeout_s=8), listener=hold_until_the_other_gives_up)
    assert [end.value for end in ended] == [1, 1]
    for error in run.errors():
        matches(f"{SECOND}.*timeouts.checkpoint.*8 s", error["message"])
    matches("rank 0 on .*: the disk does not answer", run.errors()[0]["message"])
    assert run.checkpoints() == []


def hold_the_removal(run: Run, name: str, step: int) -> None:
    if (name, step) == ("prune", 2):
        wait_until(lambda: phase.current == ("prune", 2), "the main thread at the removal", 60)
        wait_for(run.attempt_dir() / "errors" / "rank-00000.json")


@pytest.mark.case("T25")
def test_a_removal_beside_the_training_that_takes_too_long_is_told_as_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (ended,) = run.start(beside(num_ranks=1, checkpoint__timeout_s=1), listener=hold_the_removal)
    assert ended.value == 1
    matches(
        f"{SECOND} is whole, and old checkpoints were not removed within timeouts.checkpoint .1 s",
        run.errors()[0]["message"],
    )
    assert run.checkpoints() == [SECOND]


def stall(_run: Run, name: str, step: int) -> None:
    if (name, step) == ("save", 2):
        time.sleep(1.1)  # past the limit of the test below, which is the rank's own clock


def test_one_rank_alone_is_held_to_the_limit_too(tmp_path: Path) -> None:
    run = Run(tmp_path)
    config = job(num_ranks=1, checkpoint__timeout_s=1, checkpoint__on_failure="continue")
    (ended,) = run.start(config, listener=stall)
    assert ended.value == 1
    matches(f"{SECOND} was not written within timeouts.checkpoint", run.errors()[0]["message"])
    assert list(run.checkpoint_dir.iterdir()) == []


def list_aside(run: Run, name: str, _step: int) -> None:
    if name == "restore":
        aside = sorted(path.name for path in run.checkpoint_dir.glob(".tmp-*"))
        (run.root / "aside").write_text(" ".join(aside))


def test_what_a_killed_attempt_left_is_gone_before_the_next_save(tmp_path: Path) -> None:
    run = Run(tmp_path)
    left = [run.checkpoint_dir / f".tmp-{name_of(4, attempt)}" for attempt in (1, 2, 3)]
    for path in left:
        path.mkdir(parents=True)
        (path / "model.pt").write_bytes(b"half")
    run.finish(job(num_ranks=1, steps=1), attempt=2, listener=list_aside)
    assert (run.root / "aside").read_text().split() == [path.name for path in left[1:]]


# What is wrong with the folder at the start.


def a_file(run: Run) -> None:
    run.checkpoint_dir.parent.mkdir(parents=True, exist_ok=True)
    run.checkpoint_dir.touch()


def test_a_folder_that_is_none_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    run = Run(tmp_path)
    a_file(run)
    run.start(job())
    assert {error["kind"] for error in run.errors()} == {"configuration"}
    matches("cannot be written to .*: rank 0 on .*: File exists", run.errors()[1]["message"])


@needs_root
def test_a_full_disk_at_the_start_is_a_failure(small_disk: Run) -> None:
    fill(small_disk.checkpoint_dir)
    said = failed(small_disk, job(), None)
    matches("no checkpoint can be written: rank 0 on .*: No space left .*0 bytes are free", said)


@needs_root
def test_a_read_only_disk_is_a_fault_of_the_configuration(small_disk: Run) -> None:
    mount("-o", "remount,ro", str(small_disk.checkpoint_dir))
    small_disk.start(job())
    assert {error["kind"] for error in small_disk.errors()} == {"configuration"}
    matches("Read-only file system", small_disk.errors()[0]["message"])


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def become_nobody(run: Run, name: str, _step: int) -> None:
    if name == "load":
        errors = run.attempt_dir() / "errors"
        errors.mkdir(exist_ok=True)
        errors.chmod(0o777)
        os.seteuid(65534)


@needs_root
def test_a_folder_of_another_user_is_a_fault_of_the_configuration(open_folder: Path) -> None:
    run = Run(open_folder)
    run.checkpoint_dir.mkdir(parents=True)
    run.start(job(), listener=become_nobody)
    assert {error["kind"] for error in run.errors()} == {"configuration"}
    matches("Permission denied.*where this user may write", run.errors()[0]["message"])
