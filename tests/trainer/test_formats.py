"""A run goes on from any format in any other; what does not fit is told as a whole."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from states import NUM_PARAMETERS, Words, digest, in_turn, job, whole

from ranks import run_ranks
from runs import Run, in_group
from trainer import state
from trainer.contract import ConfigurationError
from trainer.loop import Trainer
from trainer.sharded_state import load_shards, staged
from trainer.shards import write_shards
from trainer.staging import Staging


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.write_text()
    return made


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
