"""What each of four real ranks holds after a step is what the planner says, to the byte."""

from __future__ import annotations

import contextlib
import faulthandler
import io
from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor

from forecasts import Forecast
from orchestrator.estimate.held import Held, held
from orchestrator.spec.presets import ModelSizes
from ranks import run_ranks
from runs import Run, in_group
from trainer.loop import Trainer
from trainer.norms import local

pytestmark = [pytest.mark.planner, pytest.mark.timeout(320)]

TIMEOUT_S = 300
NUM_RANKS = 4
# No number of ranks divides 34 and 18 rows, so that padding is seen.
SIZES = ModelSizes(layers=3, heads=2, width=34, context=18)
BYTES = 256  # tokens
FSDP1 = {"fsdp__version": 1}
GROUP = {"shard_group": 2}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "no_shard": ("no_shard", {}),
    "full_shard": ("full_shard", {}),
    "shard_grad_op": ("shard_grad_op", {}),
    "hybrid_shard": ("hybrid_shard", GROUP),
    "tensor": ("full_shard", {"tensor": 2}),
    "bf16": ("full_shard", {"precision": "bf16"}),
    "offload": ("full_shard", {"cpu_offload": True}),
    "no_shard 1": ("no_shard", FSDP1),
    "full_shard 1": ("full_shard", FSDP1),
    "shard_grad_op 1": ("shard_grad_op", FSDP1),
    "hybrid_shard 1": ("hybrid_shard", {**FSDP1, **GROUP}),
    "bf16 1": ("full_shard", {**FSDP1, "precision": "bf16"}),
}
CASES = {
    name: Forecast(strategy, SIZES, BYTES, options, NUM_RANKS)
    for name, (strategy, options) in JOBS.items()
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Held]]:
    """What each rank holds, by job."""
    run = Run(tmp_path_factory.mktemp("exact"))
    run.write_text()
    run.run_dir.mkdir()
    found: list[dict[str, Held]] = run_ranks(NUM_RANKS, _on_rank, run, timeout_s=TIMEOUT_S)
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_rank_holds_what_the_planner_says(name: str, told: list[dict[str, Held]]) -> None:
    case = CASES[name]
    expected = [held(case.setting(), case.outline, rank) for rank in range(NUM_RANKS)]
    assert [rank[name] for rank in told] == expected


@pytest.mark.parametrize("name", CASES)
def test_no_rank_holds_more_than_the_first(name: str, told: list[dict[str, Held]]) -> None:
    """But for the gaps in FSDP1's flat parameters: 7 narrow numbers at most, and a step count."""
    case = CASES[name]
    gaps = len(list(case.outline.parameters)) * (7 * 2 * 4 + 4) if name.endswith("1") else 0
    for rank in told:
        assert rank[name].parameters <= told[0][name].parameters
        assert rank[name].gradients <= told[0][name].gradients
        assert rank[name].optimizer <= told[0][name].optimizer + gaps


def _on_rank(run: Run) -> dict[str, Held]:
    faulthandler.dump_traceback_later(TIMEOUT_S - 10)  # instead of that of ranks.py
    configs = [case.config() for case in CASES.values()]
    with contextlib.redirect_stdout(io.StringIO()):
        return dict(zip(CASES, in_group(run, configs, _after_a_step), strict=True))


def _after_a_step(trainer: Trainer) -> Held:
    trainer.advance()
    parameters = trainer.parallel.trainable
    states = trainer.optimizer.state.values()
    return Held(
        _stored(parameters),
        _stored(p.grad for p in parameters if p.grad is not None),
        sum(local(v).nbytes for state in states for v in state.values() if isinstance(v, Tensor)),
    )


def _stored(tensors: Iterable[Tensor]) -> int:
    """All memory behind some tensors, padding included, each piece once."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
