"""Writing parts beside the training, refusals of one rank's disk, and what is read with care."""

from __future__ import annotations

import json
import pickle
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from states import NUM_PARAMETERS, Words, digest, group, in_turn, job, whole

from ranks import grouped, run_ranks
from runs import Run, in_group
from trainer.boxes import Box
from trainer.checkpoint import BrokenCheckpoint
from trainer.feed import Feed
from trainer.loop import Trainer
from trainer.sharded_state import load_shards, staged
from trainer.shards import Part, Parts, Shards, write_shards
from trainer.writing import PartNotWritten


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.write_text()
    return made


# Beside the training.


def straight(trainer: Trainer) -> Words:
    for _ in range(8):
        trainer.advance()
    return digest(whole(trainer))


def beside(folder: Path) -> Callable[[Trainer], list[Words]]:
    """Two writes in a thread, at steps 2 and 5, while the steps go on; the state at each step."""

    def use(trainer: Trainer) -> list[Words]:
        own, told = group(), []
        parts: Parts | None = None
        for number in range(2):
            for _ in range(2 + number):
                trainer.advance()
            told.append(digest(whole(trainer)))
            before = parts
            parts = staged(trainer.parallel, trainer.optimizer, into=before)
            assert before is None or same_memory(before, parts)
            target = folder / str(number)
            thread = threading.Thread(target=write_shards, args=(target, parts, own))
            thread.start()
            trainer.advance()
            thread.join()
        trainer.advance()
        return [*told, digest(whole(trainer))]

    return use


def same_memory(before: Parts, after: Parts) -> bool:
    pointers = [
        [box.values.data_ptr() for part in parts.values() for box in part.boxes]
        for parts in (before, after)
    ]
    return len(pointers[0]) > 0 and pointers[0] == pointers[1]


def compare_beside(run: Run, name: str) -> list[Words]:
    use = in_turn(straight, beside(run.root / "written"))
    alone, (*told, last) = in_group(run, [job(name, 2)] * 2, use)
    assert alone == last
    return list(told)


@pytest.mark.case("T22")
@pytest.mark.parametrize("name", ["ddp", "full_shard", "1 full_shard"])
def test_writing_beside_the_training(run: Run, name: str) -> None:
    """It changes nothing in the training, and what is written is the state of its step."""
    for number in range(2):
        (run.root / "written" / str(number)).mkdir(parents=True)
    told = run_ranks(2, compare_beside, run, name)
    for number, written in enumerate(told[0]):
        shards = Shards(run.root / "written" / str(number))
        assert digest({name: shards.whole(name) for name in shards.shapes}) == written


# The step after a resume.


def resumed_equal(run: Run, name: str) -> tuple[Words, Words]:
    """The state after step 2: of a run that went straight on, and of one that was resumed."""

    def go(trainer: Trainer) -> Words:
        trainer.advance()
        write_shards(run.root / "one", staged(trainer.parallel, trainer.optimizer), group())
        trainer.advance()
        return digest(whole(trainer))

    def resume(trainer: Trainer) -> Words:
        load_shards(run.root / "one", trainer.parallel, trainer.optimizer)
        trainer.progress.step, trainer.progress.samples = 1, trainer.samples_per_step
        trainer._batches = Feed(
            trainer.config, trainer.contract, trainer.corpus.train, trainer.parallel,
            trainer.progress.samples, trainer.device,
        )  # fmt: skip
        trainer.advance()
        return digest(whole(trainer))

    first, second = in_group(run, [job(name)] * 2, in_turn(go, resume))
    return first, second


@pytest.mark.case("T12")
@pytest.mark.parametrize("name", ["ddp", "hybrid_shard", "1 full_shard"])
def test_the_step_after_a_resume_is_equal(run: Run, name: str) -> None:
    (run.root / "one").mkdir()
    ((first, second), *_) = run_ranks(4, resumed_equal, run, name)  # rank 0 has the whole state
    assert len(first) == 4 * NUM_PARAMETERS
    assert first == second


# Refusals.


def refused_on_rank_1(folder: Path, how: str) -> str:
    """What each rank hears where rank 1 cannot write."""
    values = torch.full((100_000,), float(dist.get_rank()))
    parts = {"w": Part((200_000,), [Box((100_000 * dist.get_rank(),), values)])}
    own = group()
    if dist.get_rank() == 1 and how == "size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    if dist.get_rank() == 1 and how == "not here":
        folder = folder / "elsewhere"
    with pytest.raises(PartNotWritten) as caught:
        write_shards(folder, parts, own)
    dist.barrier(own)  # it can still be used
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("size", "rank 1 ({host}): File too large"),
        ("not here", "rank 1 ({host}): No such file or directory: {folder}/elsewhere"),
        ("in the way", "rank 1 ({host}): Is a directory: {folder}/__1_0.distcp"),
        ("no places", "rank 0 ({host}): Is a directory: {folder}/.metadata.tmp"),
    ],
)
def test_a_refusal_on_one_rank_is_heard_by_all(tmp_path: Path, how: str, words: str) -> None:
    if how == "in the way":
        (tmp_path / "__1_0.distcp").mkdir()
    if how == "no places":
        (tmp_path / ".metadata.tmp").mkdir()
    heard = run_ranks(2, grouped, refused_on_rank_1, tmp_path, how)
    assert heard == [words.format(host=socket.gethostname(), folder=tmp_path)] * 2


def hole(folder: Path) -> str:
    parts = {"w": Part((4,), [Box((2 * dist.get_rank(),), torch.zeros(1))])}
    with pytest.raises(RuntimeError) as caught:
        write_shards(folder, parts, group())
    return str(caught.value)


def test_parts_that_make_no_whole_are_a_fault(tmp_path: Path) -> None:
    heard = run_ranks(2, grouped, hole, tmp_path)
    assert all("invalid fill" in words for words in heard)


def write_alone(folder: Path, num_columns: int) -> None:
    """A matrix [2, 3], or as many of its columns as are given."""
    values = torch.arange(6.0).view(2, 3)[:, :num_columns]
    write_shards(folder, {"w": Part((2, 3), [Box((0, 0), values)])}, group())


def test_a_tensor_with_a_hole_is_not_read(tmp_path: Path) -> None:
    run_ranks(1, grouped, write_alone, tmp_path, 2)
    with pytest.raises(BrokenCheckpoint, match="w is not there as a whole"):
        Shards(tmp_path).whole("w")
    found = torch.zeros(2, 1)
    Shards(tmp_path).read_into({"w": Part((2, 3), [Box((0, 1), found)])})
    assert found.tolist() == [[1.0], [4.0]]


def test_the_file_of_places_runs_nothing(tmp_path: Path) -> None:
    run_ranks(1, grouped, write_alone, tmp_path, 3)
    assert torch.equal(Shards(tmp_path).whole("w"), torch.arange(6.0).view(2, 3))
    for harm in (Path.touch, torch.load, json.loads):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(harm))
        with pytest.raises(BrokenCheckpoint, match="does not belong there"):
            Shards(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"")
    with pytest.raises(BrokenCheckpoint, match="cannot be read"):
        Shards(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(BrokenCheckpoint, match="does not say"):
        Shards(tmp_path)
