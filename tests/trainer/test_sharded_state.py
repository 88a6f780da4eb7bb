"""The state in parts: what any layout writes, any other reads, with the same bits.

Whole states are gathered by full_state.py and flat_parts.py, which know nothing of these files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from states import NUM_NUMBERS, NUM_PARAMETERS, STRATEGIES, Words, digest, job, whole
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from ranks import run_ranks
from runs import Run, in_group
from trainer import checkpoint
from trainer.loop import Trainer
from trainer.sharded_state import load_shards, staged
from trainer.shards import Shards, write_shards


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.write_text()
    return made


Told = tuple[Words, Words, dict[str, Any]]


def step(trainer: Trainer, source: Path | None, target: Path, group: Any) -> Told:
    """Load, train a step, write; returns the state after loading, at writing, and the files."""
    if source is not None:
        load_shards(source, trainer.parallel, trainer.optimizer)
    loaded = digest(whole(trainer))
    trainer.advance()
    written = digest(whole(trainer))
    parts = staged(trainer.parallel, trainer.optimizer)
    return loaded, written, write_shards(target, parts, group)


def walk(run: Run, configs: Sequence[dict[str, Any]], first: int) -> list[Told]:
    """Each configuration goes on from the folder of the one before; folder `first` is there."""
    folders = iter(range(first, first + len(configs)))

    def use(trainer: Trainer) -> Told:
        number = next(folders)
        group = dist.new_group(backend="gloo")
        source = run.root / str(number) if number else None
        target = run.root / str(number + 1)
        target.mkdir(exist_ok=True)
        return step(trainer, source, target, group)

    return in_group(run, configs, use)


def check(run: Run, told: Sequence[list[Told]], before: dict[str, str] | None, first: int) -> None:
    """That each load gave what was written before it, and the files hold what was written."""
    for number, (loaded, written, _) in enumerate(told[0], first):
        assert before is None or loaded == before
        shards = Shards(run.root / str(number + 1))
        assert digest({name: shards.whole(name) for name in shards.shapes}) == written
        before = written


def numbers_by_file(folder: Path) -> dict[str, int]:
    """How many bytes of numbers each file has, by torch's own reading of the places."""
    metadata = FileSystemReader(folder).read_metadata()
    found: Counter[str] = Counter()
    for name, tensor in metadata.state_dict_metadata.items():
        assert isinstance(tensor, TensorStorageMetadata)
        for chunk in tensor.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            found[place.relative_path] += prod(chunk.sizes) * 4
    return dict(found)


def check_shares(run: Run, configs: Sequence[str], told: Sequence[list[Told]]) -> None:
    """Nothing is written twice, each rank writes about a quarter, and little goes on top."""
    for number, name in enumerate(configs):
        shares = numbers_by_file(run.root / str(number + 1))
        assert sum(shares.values()) == 3 * 4 * NUM_NUMBERS + 4 * NUM_PARAMETERS
        assert sorted(shares) == [f"__{rank}_0.distcp" for rank in range(4)]
        # With tensor 2 the embeddings go by another way than the blocks.
        assert max(shares.values()) < 1.25 * sum(shares.values()) / 4, name
        for rank, (_, _, files) in enumerate(row[number] for row in told):
            assert sorted(files) == [*([".metadata"] if rank == 0 else []), f"__{rank}_0.distcp"]
            file = f"__{rank}_0.distcp"
            assert files[file] == checkpoint.describe(run.root / str(number + 1) / file)
            on_top = files[file]["size_bytes"] - shares[file]
            assert 0 < on_top < 2048 * 5 * 4 * NUM_PARAMETERS  # 5 boxes of a tensor at most


@pytest.mark.case("T24")
def test_any_strategy_goes_on_from_any_other(run: Run) -> None:
    configs = [job(name) for name in STRATEGIES]
    told = run_ranks(4, walk, run, configs, 0)
    check(run, told, None, 0)
    check_shares(run, list(STRATEGIES), told)


def test_any_number_of_ranks_goes_on_from_any_other(run: Run) -> None:
    """4 hybrid to 2 DDP and back, and over a single rank."""
    before = None
    names = [(4, "hybrid_shard"), (2, "ddp"), (4, "hybrid_shard"), (1, "full_shard"),
             (4, "1 full_shard"), (2, "tensor"), (1, "ddp")]  # fmt: skip
    for number, (num_ranks, name) in enumerate(names):
        told = run_ranks(num_ranks, walk, run, [job(name, num_ranks)], number)
        check(run, told, before, number)
        before = told[0][0][1]


MODELS: dict[str, dict[str, Any]] = {
    "frozen": {"model__factory": "models:frozen"},
    "stack": {"model__factory": "models:stack"},
    "words": {
        "model__factory": "models:words", "model__args": {"unused": True, "norm": True},
        "parallelism__ddp__find_unused_parameters": True,
    },
}  # fmt: skip


# What is in the files, and what is not.
FOUND = {
    "frozen": {"model.embedding.weight": True, "optimizer.embedding.weight.step": False},
    "stack": {"model.embedding.weight": True, "model.head.weight": False, "model.mask": False},
    "words": {
        "model.norm.running_mean": True, "model.norm.num_batches_tracked": True,
        "model.unused.weight": True, "optimizer.unused.weight.step": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_models_with_frozen_tied_and_unused_parameters_and_buffers(run: Run, model: str) -> None:
    names = ["ddp", "full_shard", "1 full_shard", "ddp"]
    configs = [job(name, 2, **MODELS[model], parallelism__wrap__by="size") for name in names]
    told = run_ranks(2, walk, run, configs, 0)
    check(run, told, None, 0)
    names_of_state = told[0][1][1].keys()  # FSDP1 gives what is not used gradients of 0
    for name in FOUND[model]:
        assert (name in names_of_state) == FOUND[model][name]
