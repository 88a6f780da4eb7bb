"""Every epoch takes each sample once, over any number of attempts: proved by the samples' log."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import end_ranks
from runs import Run, configuration
from trainer import commands, sample_log
from trainer.feed import Numbered
from trainer.sample_log import history, read_attempts
from trainer.samples import Indices, SampleStream, train_batches

NUM_SAMPLES = 50
STEPS = 28  # of 8 samples: 4 epochs and a half


def job(ranks: int = 4, workers: int = 0, **changes: Any) -> dict[str, Any]:
    """Steps of 8 samples by any number of ranks, so that an epoch ends within a step."""
    return configuration(
        num_ranks=ranks, batch__micro=2, batch__accumulation=4 // ranks, steps=STEPS,
        data__kind="synthetic", data__samples=NUM_SAMPLES, data__paths=[],
        data__validation_fraction=0.0, data__workers=workers, logging__samples=True,
        checkpoint__every_steps=5, checkpoint__keep=100, **changes,
    )  # fmt: skip


def kill_at(at: int, rank: int) -> Any:
    def listener(_run: Run, name: str, step: int) -> None:
        if (name, step) == ("step", at) and os.environ["RANK"] == str(rank):
            os.kill(os.getpid(), signal.SIGKILL)

    return listener


def terminate_with_workers(_run: Run, name: str, step: int) -> None:
    """A signal to all below a rank, as torchrun's goes to the whole session of each."""
    if (name, step) == ("step", 17) and os.environ["RANK"] == "1":
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)


def steps_of(run: Run) -> dict[int, dict[int, list[int]]]:
    """The samples of each step by epoch, in an order that does not depend on the ranks."""
    return {
        step: {epoch: sorted(numbers.tolist()) for epoch, numbers in epochs.items()}
        for step, epochs in history(read_attempts(run.run_dir)).items()
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("straight"))
    assert run.finish(job()) == "done"
    assert sample_log.main([str(run.run_dir)]) == 0
    assert sorted(steps_of(run)) == list(range(1, STEPS + 1))
    return run


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.case("T04")
@pytest.mark.case("T05")
@pytest.mark.case("T17")
def test_kills_and_drains_in_later_epochs(straight: Run, tmp_path: Path, workers: int) -> None:
    run = Run(tmp_path)
    run.start(job(workers=workers), 1, kill_at(9, rank=2))
    run.start(job(workers=workers), 2, kill_at(13, rank=0))
    assert run.finish(job(workers=workers), 3, terminate_with_workers) == "drained"
    assert run.finish(job(workers=workers), 4) == "done"
    assert sample_log.check(run.run_dir) == (
        ["steps 1 to 28, attempts [1, 2, 3, 4]",
         *(f"epoch {epoch}: 50 of 50 samples, none twice" for epoch in range(4)),
         "epoch 4: 24 of 50 samples, none twice"], [],
    )  # fmt: skip
    assert steps_of(run) == steps_of(straight)
    assert run.losses() == straight.losses()
    assert run.digest() == straight.digest()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.case("T06")
def test_other_numbers_of_ranks(straight: Run, tmp_path: Path, workers: int) -> None:
    run = Run(tmp_path)
    run.start(job(4, workers), 1, kill_at(8, rank=3))
    run.start(job(2, workers), 2, kill_at(17, rank=1))
    assert run.finish(job(4, workers), 3) == "done"
    assert sample_log.main([str(run.run_dir)]) == 0
    assert steps_of(run) == steps_of(straight)
    assert [event["resumed_from"] for event in run.events("start")] == [
        None, "step-000000005-attempt-00001", "step-000000015-attempt-00002",
    ]  # fmt: skip


def test_ranks_that_split_each_block_take_the_same_samples(straight: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    split: dict[str, Any] = {"parallelism__strategy": "full_shard", "parallelism__tensor": 2}
    assert run.finish(job(4, **split) | {"batch": {"micro": 2, "accumulation": 2}}) == "done"
    assert sample_log.main([str(run.run_dir)]) == 0
    assert steps_of(run) == steps_of(straight)
    assert len(list((run.run_dir / "samples").iterdir())) == 4


def write(folder: Path, attempt: int, share: str, steps: dict[int, dict[str, list[int]]]) -> Path:
    """A rank's log, of 4 samples an epoch; `share`: "0/2" is the first of two."""
    mine, shares = share.split("/")
    lines: list[dict[str, Any]] = [{"num_samples": 4, "share": int(mine), "shares": int(shares)}]
    lines += [{"step": step, "epochs": epochs} for step, epochs in steps.items()]
    path = folder / "samples" / f"attempt-{attempt}-rank-{int(mine):05d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ({1: {"0": [0, 1]}, 2: {"0": [1, 3]}}, "epoch 0: taken twice: 1 in steps [1, 2]"),
        ({1: {"0": [0, 1]}, 2: {"1": [1, 3]}}, "epoch 0: skipped: 2; 3"),
        ({1: {"0": [0, 1, 9]}}, "epoch 0: no samples of 0 to 3: 9"),
        ({1: {"0": [0, 1]}, 3: {"0": [2, 3]}}, "not logged by all ranks: 2 of the steps up to 3"),
        ({}, "no step is logged"),
    ],
)
def test_faults_are_found(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    steps: dict[int, dict[str, list[int]]],
    fault: str,
) -> None:
    write(tmp_path, 1, "0/1", steps)
    assert sample_log.main([str(tmp_path)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAULT")]
    assert fault in line


def test_steps_that_were_cut_off_or_repeated_do_not_count_twice(tmp_path: Path) -> None:
    write(tmp_path, 1, "0/2", {1: {"0": [0]}, 2: {"0": [2]}, 3: {"1": [3]}})
    write(tmp_path, 1, "1/2", {1: {"0": [1]}, 2: {"0": [3]}})
    path = write(tmp_path, 2, "0/1", {2: {"0": [2, 3]}, 3: {"1": [3, 1]}, 4: {"1": [0, 2]}})
    path.write_text(path.read_text()[:-3])  # killed while it wrote
    told, faults = sample_log.check(tmp_path)
    assert faults == []
    assert told == ["steps 1 to 3, attempts [1, 2]", "epoch 0: 4 of 4 samples, none twice",
                    "epoch 1: 2 of 4 samples, none twice"]  # fmt: skip


def test_a_newer_attempt_of_another_batch_takes_over(tmp_path: Path) -> None:
    write(tmp_path, 1, "0/1", {1: {"0": [0]}, 2: {"0": [1]}, 3: {"0": [2]}, 4: {"0": [3]}})
    write(tmp_path, 2, "0/1", {2: {"0": [1, 2]}})
    assert sample_log.check(tmp_path) == (
        ["steps 1 to 2, attempts [1, 2]", "epoch 0: 3 of 4 samples, none twice"], []
    )  # fmt: skip


def test_a_log_that_begins_later_blames_no_epoch_that_it_does_not_show(tmp_path: Path) -> None:
    write(tmp_path, 3, "0/1", {7: {"2": [3]}, 8: {"3": [0, 1]}, 9: {"3": [2, 3], "4": [1]}})
    assert sample_log.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{}\n", "KeyError"), ("5\n", "TypeError"), ("no JSON\n", "JSONDecodeError")],
)
def test_what_is_no_log_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, fault: str
) -> None:
    write(tmp_path, 1, "0/1", {}).write_text(content)
    assert sample_log.main([str(tmp_path)]) == 1
    assert fault in capsys.readouterr().out


def test_epochs_of_other_data_cannot_be_compared(tmp_path: Path) -> None:
    path = write(tmp_path, 1, "0/1", {1: {"0": [0]}})
    path.with_name("attempt-2-rank-00000.jsonl").write_text(
        path.read_text().replace('"num_samples": 4', '"num_samples": 5')
    )
    _, faults = sample_log.check(tmp_path)
    assert faults == ["epochs have no common length: attempts had [4, 5] samples"]


def test_a_log_that_lacks_the_last_steps_is_told(tmp_path: Path) -> None:
    write(tmp_path, 1, "0/1", {1: {"0": [0]}})
    (tmp_path / "DONE").write_text('{"step": 2}')
    _, faults = sample_log.check(tmp_path)
    assert faults == ["DONE says 2 steps, and the log ends with step 1"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1, "0/1", {1: {"0": [0, 0]}})
    assert commands.main(["samples", str(tmp_path)]) == 1
    assert "epoch 0: taken twice: 0 in steps [1, 1]" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_usage(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sample_log.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


class Stuck:
    """Samples of which one cannot be had."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, indices: Indices) -> Any:
        if 7 in indices:
            signal.pause()
        return np.asarray(indices)


def wait_for_stuck() -> str:
    order = SampleStream(12, 1, 0, 1, seed=1)
    batches = train_batches(Numbered(Stuck()), order, 2, timeout_s=5, pin=False, rank=4)
    try:
        for _ in range(12):
            next(batches)
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.case("T31")
def test_a_worker_that_hangs_is_named() -> None:
    order = [int(next(iter(batch))) for batch, _ in
             zip(SampleStream(12, 1, 0, 1, seed=1), range(12), strict=False)]  # fmt: skip
    (ended,) = end_ranks(1, wait_for_stuck)
    found = re.match(r"rank 4: loader worker (\d) gave no batch within 5 s", ended.value)
    assert found is not None, ended
    assert int(found[1]) == order.index(7) % 2
