"""What the planner says that ranks send, against what four real ranks send in a step."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from measuring import Counting, num_recorded
from orchestrator.estimate.gpt import gpt_outline
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.traffic import traffic
from orchestrator.spec.parallelism import Parallelism
from orchestrator.spec.presets import ModelSizes
from ranks import run_ranks
from runs import Run, configuration, in_group
from theory import Collective
from trainer.loop import Trainer

pytestmark = [pytest.mark.planner, pytest.mark.timeout(300)]

NUM_RANKS, RANKS_PER_NODE = 4, 2
# Sizes that no number of ranks divides, so that padding is seen, and some megabytes of gradients.
MODEL = {"layers": 2, "heads": 2, "width": 130, "context": 18}
VOCABULARY = 256  # bytes
STEPS = 6  # PowerSGD begins after two
WORLD_TIMEOUT_S = 240

FSDP1 = {"fsdp__version": 1}
TENSOR = {"strategy": "full_shard", "tensor": 2}
HYBRID = {"strategy": "hybrid_shard", "shard_group": 2}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp, default buckets": {"ddp__bucket_cap_mb": 25.0},
    "ddp, bf16": {"precision": "bf16"},
    "ddp, each of 2": {"accumulation": 2, "gradient_sync": "each"},
    "ddp, last of 2": {"accumulation": 2},
    "ddp, fp16 hook": {"ddp__hook": "fp16"},
    "ddp, powersgd": {"ddp__hook": "powersgd", "ddp__powersgd_rank": 3},
    "ddp, unused": {"ddp__find_unused_parameters": True},
    "no_shard": {"strategy": "no_shard"},
    "no_shard, FSDP1": {"strategy": "no_shard", **FSDP1},
    "no_shard, FSDP1, bf16": {"strategy": "no_shard", "precision": "bf16", **FSDP1},
    "full_shard": {"strategy": "full_shard"},
    "full_shard, bf16": {"strategy": "full_shard", "precision": "bf16"},
    "full_shard, bf16 sums": {
        "strategy": "full_shard", "precision": "bf16", "reductions": "bf16",
    },
    "full_shard, with the root": {"strategy": "full_shard", "fsdp__reshard_after_forward": True},
    "full_shard, kept": {"strategy": "full_shard", "fsdp__reshard_after_forward": False},
    "full_shard, kept over 2": {"strategy": "full_shard", "fsdp__reshard_after_forward": 2},
    "full_shard, prefetch": {"strategy": "full_shard", "fsdp__prefetch_forward": 1},
    "full_shard, recomputed": {"strategy": "full_shard", "activation_checkpointing": "full"},
    "full_shard, last of 2": {"strategy": "full_shard", "accumulation": 2},
    "full_shard, each of 2": {
        "strategy": "full_shard", "accumulation": 2, "gradient_sync": "each",
    },
    "full_shard, FSDP1": {"strategy": "full_shard", **FSDP1},
    "full_shard, FSDP1, bf16": {"strategy": "full_shard", "precision": "bf16", **FSDP1},
    "full_shard, FSDP1, last of 2": {"strategy": "full_shard", "accumulation": 2, **FSDP1},
    "shard_grad_op": {"strategy": "shard_grad_op"},
    "shard_grad_op, last of 2": {"strategy": "shard_grad_op", "accumulation": 2},
    "shard_grad_op, FSDP1": {"strategy": "shard_grad_op", **FSDP1},
    "shard_grad_op, FSDP1, last of 2": {"strategy": "shard_grad_op", "accumulation": 2, **FSDP1},
    "hybrid_shard": HYBRID,
    "hybrid_shard, bf16": {**HYBRID, "precision": "bf16"},
    "hybrid_shard, last of 2": {**HYBRID, "accumulation": 2},
    "hybrid_shard, FSDP1": {**HYBRID, **FSDP1},
    "hybrid_shard, kept, FSDP1": {**HYBRID, **FSDP1, "fsdp__reshard_after_forward": False},
    "tensor": TENSOR,
    "tensor, bf16": {**TENSOR, "precision": "bf16"},
    "tensor, last of 2": {**TENSOR, "accumulation": 2},
    "tensor, recomputed": {**TENSOR, "activation_checkpointing": "full"},
    "tensor, one of two recomputed": {
        **TENSOR, "activation_checkpointing": "full", "activation_checkpointing_every": 2,
    },
    "tensor, partly recomputed": {**TENSOR, "activation_checkpointing": "selective"},

}  # fmt: skip


class Sent(NamedTuple):
    """Of one kind in groups of one size in one step: calls, and bytes of the whole tensors."""

    calls: int
    payload_bytes: int


Sums = dict[tuple[str, int, str], Sent]


def config_of(case: dict[str, Any]) -> dict[str, Any]:
    """The trainer's configuration."""
    given = {f"parallelism__{key}": value for key, value in case.items() if key != "accumulation"}
    given["batch__accumulation"] = case.get("accumulation", 1)
    sizes = {f"model__{key}": value for key, value in MODEL.items()}
    return configuration(num_ranks=NUM_RANKS, steps=STEPS, logging__every=100, **sizes, **given)


def setting_of(config: dict[str, Any]) -> Setting:
    """The planner's setting, with the ranks as those of two nodes."""
    parallelism = Parallelism.model_validate(config["parallelism"])
    return Setting(
        strategy=parallelism.strategy,
        num_nodes=NUM_RANKS // RANKS_PER_NODE,
        ranks_per_node=RANKS_PER_NODE,
        shard_group=parallelism.group(RANKS_PER_NODE),
        tensor=parallelism.tensor,
        precision=parallelism.precision,
        reductions=parallelism.reductions,
        micro=config["batch"]["micro"],
        accumulation=config["batch"]["accumulation"],
        context=config["model"]["context"],
        checkpointing=parallelism.activation_checkpointing,
        checkpointing_every=parallelism.activation_checkpointing_every,
        cpu_offload=parallelism.cpu_offload,
        gradient_sync=parallelism.gradient_sync,
        steps=STEPS,
        ddp=parallelism.ddp,
        fsdp=parallelism.fsdp,
        wrap=parallelism.wrap,
    )


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sums]:
    run = Run(tmp_path_factory.mktemp("traffic"))
    run.write_text()
    run.run_dir.mkdir()
    told = run_ranks(NUM_RANKS, _on_rank, run, timeout_s=WORLD_TIMEOUT_S)
    return dict(zip(CASES, told[0], strict=True))


def _on_rank(run: Run) -> list[Sums]:
    faulthandler.dump_traceback_later(WORLD_TIMEOUT_S - 10)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
    configs = [config_of(case) for case in CASES.values()]
    with contextlib.redirect_stdout(io.StringIO()):
        found: list[Sums] = in_group(run, configs, _last_step)
    return found


def _last_step(trainer: Trainer) -> Sums:
    """What the last step sends; the flight recorder must have seen as many collectives."""
    for _ in range(STEPS - 1):
        trainer.advance()
    before = num_recorded()
    with Counting() as counting:
        trainer.advance()
    assert num_recorded() - before == counting.seen.total()
    return _sums(counting.seen)


def _sums(seen: Counter[Collective]) -> Sums:
    found: Sums = {}
    for one, calls in seen.items():
        size = len(one.ranks)
        if size == 1 or not one.size_bytes:
            continue
        payload = one.size_bytes * (size if one.kind == "all_gather" else 1) * calls
        nodes = {rank // RANKS_PER_NODE for rank in one.ranks}
        key = (one.kind, size, "inside" if len(nodes) == 1 else "between")
        before = found.get(key, Sent(0, 0))
        found[key] = Sent(before.calls + calls, before.payload_bytes + payload)
    return found


def predicted(config: dict[str, Any]) -> Sums:
    """The planner's answer in the same form."""
    model = config["model"]
    sizes = ModelSizes(**{key: model[key] for key in MODEL})
    outline = gpt_outline(sizes, VOCABULARY, model["tied"], model["dropout"])
    found: Sums = {}
    for one in traffic(setting_of(config), outline).transfers:
        key = (one.kind, one.group_size, one.span)
        before = found.get(key, Sent(0, 0))
        found[key] = Sent(before.calls + one.count, before.payload_bytes + one.payload_bytes)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_forecast_is_what_ranks_send(name: str, counted: dict[str, Sums]) -> None:
    expected = predicted(config_of(CASES[name]))
    assert counted[name].keys() == expected.keys()
    for key, sent in counted[name].items():
        assert sent.payload_bytes == pytest.approx(expected[key].payload_bytes, rel=0.01), key
        assert sent.calls == expected[key].calls, key
