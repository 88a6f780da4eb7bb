"""Writing parts beside the training, refusals of one rank's disk, and what is read with care."""

from __future__ import annotations

import json
import pickle
import resource
import socket
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_sharded_state import NUM_PARAMETERS, digest, job, whole

from ranks import grouped, run_ranks
from runs import Run, in_group
from trainer import state
from trainer.boxes import Box
from trainer.checkpoint import BrokenCheckpoint
from trainer.contract import ConfigurationError
from trainer.feed import Feed
from trainer.loop import Trainer
from trainer.sharded_state import load_shards, staged
from trainer.shards import Part, Parts, Shards, write_shards
from trainer.staging import Staging
from trainer.writing import PartNotWritten

Words = dict[str, str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.write_text()
    return made


def in_turn(*uses: Callable[[Trainer], Any]) -> Callable[[Trainer], Any]:
    """The first trainer goes to the first of them, and so on."""
    following = iter(uses)

    def use(trainer: Trainer) -> Any:
        return next(following)(trainer)

    return use


def group() -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=30))


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
    for first, second in run_ranks(4, resumed_equal, run, name):
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
    values = torch.arange(6.0).view(2, 3)[:, :num_columns].clone()
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


# What a checkpoint says of itself decides how it is read.


def written(run: Run, trainer: Trainer, format: str) -> Words:
    """Publish a checkpoint of the format; returns the state in it. A collective."""
    folder, peers = run.root / format, trainer.peers
    stage = Staging(trainer.parallel, trainer.optimizer, trainer.settings, peers, format)
    content = stage(trainer.progress, aside=False)
    if peers.first:
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"format": format}))
        for name, part in content.parts.items():
            torch.save(part, folder / name)
    dist.barrier()
    if content.shards is not None:
        write_shards(folder, content.shards, peers.group)
    return digest(whole(trainer))


def restored(run: Run, trainer: Trainer, format: str) -> Words:
    saved = state.load(run.root / format)
    assert saved.format == format
    state.restore(saved, trainer.parallel, trainer.optimizer, trainer.device, 1)
    return digest(whole(trainer))


def through_formats(run: Run) -> bool:
    """From DDP by a full one to sharding, by a sharded one back, and by one with both."""
    seen: list[Words] = []

    def use(trainer: Trainer) -> None:
        formats = ["full", "sharded", "both", None]
        before, after = ([None, *formats][len(seen)], formats[len(seen)])
        if before is not None:
            if before == "both" and dist.get_rank() == 0:
                (run.root / before / "model.pt").unlink()  # not needed
            assert restored(run, trainer, before) == seen[-1]
        trainer.advance()
        seen.append(written(run, trainer, after) if after else {})

    in_group(run, [job(name, 2) for name in ("ddp", "full_shard", "ddp", "full_shard")], use)
    return len(seen) == 4


def test_a_run_goes_on_with_another_format(run: Run) -> None:
    assert run_ranks(2, through_formats, run) == [True, True]


def misfit(run: Run) -> str:
    def write(trainer: Trainer) -> None:
        trainer.advance()
        written(run, trainer, "sharded")

    def read(trainer: Trainer) -> str:
        with pytest.raises(ConfigurationError) as caught:
            restored(run, trainer, "sharded")
        with pytest.raises(ValueError, match="is not known") as every:
            load_shards(run.root / "sharded", trainer.parallel, trainer.optimizer)
        return f"{caught.value}\n{every.value}"

    configs = [job("full_shard", 2), job("1 full_shard", 2, model__width=32, model__layers=1)]
    _, told = in_group(run, configs, in_turn(write, read))
    return str(told)


def test_all_that_does_not_fit_is_told(run: Run) -> None:
    for told in run_ranks(2, misfit, run):
        assert "checkpoint sharded does not fit the model (model.blocks.0." in told
        for words in (
            "model.token.weight has shape [256, 30] instead of [256, 32]",
            "optimizer.token.weight.exp_avg_sq has shape [256, 30] instead of [256, 32]",
            "model.blocks.1.mlp_norm.bias is not known",
            "optimizer.blocks.1.mlp_norm.bias.step is not known",
        ):
            assert words in told


def compiled_names(run: Run) -> list[list[str]]:
    """Names in the files of models that are compiled and of such that are not."""
    warnings.simplefilter("ignore", DeprecationWarning)  # what torch's compiler itself imports

    def use(trainer: Trainer) -> list[str]:
        return sorted(staged(trainer.parallel, trainer.optimizer))

    names = ("full_shard", "1 full_shard")
    configs = [job(name, 2, compile=compiled) for name in names for compiled in (False, True)]
    return in_group(run, configs, use)


def test_compiling_changes_no_name(run: Run) -> None:
    for names in run_ranks(2, compiled_names, run):
        assert len(names[0]) == NUM_PARAMETERS
        assert names[1:] == names[:1] * 3
