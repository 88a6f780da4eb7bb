"""Attempts with fewer ranks than the job asks for: the same samples, the same losses."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import Run, configuration
from trainer.config import parse_config
from trainer.contract import ConfigurationError
from trainer.elastic import for_world
from trainer.mesh import sizes_of
from trainer.samples import SampleStream

RANKS, STEPS = 4, 12
# After how many steps attempt N is asked to stop, and with how many ranks it runs.
COURSE = {1: (4, 4), 2: (7, 2), 3: (9, 1), 4: (None, 4)}


def elastic(**changes: Any) -> dict[str, Any]:
    return configuration(**{"num_ranks": RANKS, "steps": STEPS, **changes})


def drain_on_course(run: Run, name: str, step: int) -> None:
    attempt = int(os.environ["ORCHESTRATE_ATTEMPT"])
    if name == "step" and step + 1 == COURSE[attempt][0] and os.environ["RANK"] == "0":
        (run.attempt_dir(attempt) / "drain").touch()


@pytest.mark.case("T06")
@pytest.mark.parametrize(
    "spread",
    [
        {"parallelism__strategy": "ddp"},
        {"parallelism__strategy": "full_shard", "checkpoint__format": "sharded"},
        {"parallelism__strategy": "hybrid_shard", "parallelism__shard_group": 2,
         "checkpoint__format": "sharded", "checkpoint__asynchronous": True},
    ],
    ids=lambda spread: spread["parallelism__strategy"],
)  # fmt: skip
def test_losses_are_those_of_a_run_with_all_ranks(tmp_path: Path, spread: dict[str, Any]) -> None:
    sizes = [2, 4] if "parallelism__shard_group" in spread else [1, 2, 4]
    config = elastic(**spread, world_sizes=sizes)
    straight, run = Run(tmp_path / "straight"), Run(tmp_path / "elastic")
    assert straight.finish(config) == "done"
    for attempt, (stop, ranks) in COURSE.items():
        outcome = run.finish(config, attempt, drain_on_course, max(ranks, sizes[0]))
        assert outcome == ("drained" if stop else "done")
    assert [start["world_size"] for start in run.events("start")] == [4, 2, sizes[0], 4]
    expected, found = straight.losses(), run.losses()
    assert sorted(found) == list(range(1, STEPS + 1))
    assert [found[s] for s in sorted(found)] == pytest.approx(
        [expected[s] for s in sorted(expected)], rel=1e-6
    )


@given(
    world=st.sampled_from([1, 2, 3, 4, 6, 12]),
    other=st.sampled_from([1, 2, 3, 4, 6, 12]),
    micro=st.integers(1, 3),
    offset=st.integers(0, 200),
)
def test_a_step_has_the_same_samples_with_any_number_of_ranks(
    world: int, other: int, micro: int, offset: int
) -> None:
    assert step_samples(world, micro, offset) == step_samples(other, micro, offset)


def step_samples(world: int, micro: int, offset: int) -> list[int]:
    """The samples of one step of 12 micro-batches on all ranks together, sorted."""
    found: list[int] = []
    for rank in range(world):
        stream = SampleStream(50, micro, rank, world, seed=7, offset=offset)
        found += np.concatenate(list(islice(stream, 12 // world))).tolist()
    return sorted(found)


@pytest.mark.parametrize(("world", "accumulation"), [(1, 12), (2, 6), (4, 3)])
def test_the_global_batch_is_kept(world: int, accumulation: int) -> None:
    config = for_world(parse_config(elastic(batch__accumulation=3), "test"), world)
    assert (config.num_ranks, config.batch.accumulation) == (world, accumulation)


def test_with_half_of_the_ranks_failures_are_half_as_frequent() -> None:
    config = parse_config(elastic(checkpoint__every_steps=None, checkpoint__mtbf_s=600.0), "test")
    assert for_world(config, 2).checkpoint.mtbf_s == 1200.0


def test_the_last_group_of_hybrid_shard_is_full_shard() -> None:
    spread = {"parallelism__strategy": "hybrid_shard", "parallelism__shard_group": 2}
    config = for_world(parse_config(elastic(**spread), "test"), 2)
    assert (config.parallelism.strategy, config.parallelism.shard_group) == ("full_shard", None)
    assert sizes_of(config).shard == 2


@pytest.mark.parametrize(
    ("changes", "world", "words"),
    [
        ({}, 8, "rendered for 1, 2 or 4 ranks, but WORLD_SIZE is 8"),
        ({"world_sizes": [4]}, 2, "rendered for 4 ranks, but WORLD_SIZE is 2"),
        ({"world_sizes": [3, 4]}, 3, "3 ranks cannot share batch.accumulation 1 x 4 ranks"),
        ({"parallelism__tensor": 4, "parallelism__strategy": "full_shard",
          "model__heads": 4}, 2, "2 ranks are no multiple of shard_group 1 x tensor 4"),
    ],
)  # fmt: skip
def test_another_number_of_ranks_is_refused(
    changes: dict[str, Any], world: int, words: str
) -> None:
    config = parse_config(elastic(**changes), "test")
    with pytest.raises(ConfigurationError, match=words):
        for_world(config, world)
