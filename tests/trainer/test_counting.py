"""When the collectives of a run are counted: never unless asked for, and once an attempt."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks
from runs import Run, configuration, in_group
from trainer.loop import Trainer
from trainer.metrics import peak_memory_bytes

STEPS = (6, 2, 1)
HELD_BYTES, PAGE_BYTES = 128 * 2**20, 4096


def _advance(trainer: Trainer) -> None:
    for _ in range(trainer.config.steps):
        trainer.advance()


def _train(run: Run, traffic: bool) -> None:
    configs = [configuration(steps=steps, logging__traffic=traffic) for steps in STEPS]
    with contextlib.redirect_stdout(io.StringIO()):
        in_group(run, configs, _advance)


def _train_and_end(run: Run) -> None:
    first = os.environ["RANK"] == "0"
    held = bytearray(0 if first else HELD_BYTES)
    held[::PAGE_BYTES] = b"x" * len(held[::PAGE_BYTES])  # in use, on the other rank

    def use(trainer: Trainer) -> None:
        trainer.run()
        own = torch.tensor([0, 0], dtype=torch.int64)
        own[dist.get_rank()] = peak_memory_bytes(torch.device("cpu"))
        dist.all_reduce(own)
        if first:
            (run.workdir / "peaks.json").write_text(json.dumps(own.tolist()))

    with contextlib.redirect_stdout(io.StringIO()):
        in_group(run, [configuration(steps=5, logging__traffic=True)], use)


def test_at_the_end_the_use_of_the_rank_that_used_most_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_text()
    run.run_dir.mkdir()
    run_ranks(2, _train_and_end, run)
    (use,) = run.events("use")
    first, second = json.loads((run.workdir / "peaks.json").read_text())
    assert use["step"] == 5
    assert use["cpu_s"] > 0
    assert first < second - HELD_BYTES / 2
    assert second - HELD_BYTES / 2 < use["peak_bytes"] <= second


@pytest.mark.parametrize(
    ("traffic", "counted"),
    # The second step and the third, or what there is of them.
    [(True, [(3, 2), (2, 1), (1, 1)]), (False, [])],
)
def test_two_steps_are_counted_where_it_is_asked_for(
    traffic: bool, counted: list[tuple[int, int]], tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.write_text()
    run.run_dir.mkdir()
    run_ranks(2, _train, run, traffic)
    events = run.events("traffic")
    assert [(event["step"], event["steps"]) for event in events] == counted
    for event in events:
        (sums,) = event["collectives"]
        assert (sums["kind"], sums["group_size"], sums["ranks_per_node"]) == ("all_reduce", 2, 2)
        assert sums["payload_bytes"] == 4 * 34_176
        assert event["unseen"] == 0
