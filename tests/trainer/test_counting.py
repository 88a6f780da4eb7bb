"""When the collectives of a run are counted: never unless asked for, and once an attempt."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from ranks import run_ranks
from runs import Run, configuration, in_group
from trainer.loop import Trainer

STEPS = (6, 2, 1)


def _advance(trainer: Trainer) -> None:
    for _ in range(trainer.config.steps):
        trainer.advance()


def _train(run: Run, traffic: bool) -> None:
    configs = [configuration(steps=steps, logging__traffic=traffic) for steps in STEPS]
    with contextlib.redirect_stdout(io.StringIO()):
        in_group(run, configs, _advance)


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
