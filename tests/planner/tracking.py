"""Peaks of a step as torch's own MemTracker sees them, of the trainer's own functions.

Under the sharding strategies all tensors are fake and the ranks are a fake group: shapes without
memory. DDP sums gradients in C++, which needs real tensors; it is a group of one real rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from forecasts import Forecast
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

import trainer.classic
import trainer.sharding
from trainer.config import TrainerConfig, parse_config
from trainer.mesh import build_mesh, sizes_of
from trainer.model import GPT
from trainer.optim import build_optimizer
from trainer.parallelized import Parallelized
from trainer.recompute import runner_of
from trainer.replicated import replicated
from trainer.starting import StartingValues

CPU = torch.device("cpu")
STEPS = 3  # AdamW makes its state in the first; DDP puts its buckets into order after it


class Totals(MemTracker):
    """Without its hooks on gradients, which FSDP1's views of parameters do not take."""

    def _track_module_params_and_buffers(
        self, module: nn.Module, install_grad_hooks: bool = True
    ) -> tuple[int, int]:
        found: tuple[int, int] = super()._track_module_params_and_buffers(module, False)
        return found

    def forget_peak(self) -> None:
        """The next peak is that of what comes."""
        self.reset_mod_stats()
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    @property
    def peak(self) -> int:
        """Bytes at the peak, since the last forget_peak()."""
        return int(self.get_tracker_snapshot("peak")[CPU]["Total"])

    @property
    def current(self) -> int:
        return int(self.get_tracker_snapshot()[CPU]["Total"])


def tracked_peak(case: Forecast) -> int:
    """Bytes of rank 0 at the peak of a later step. To be called in a process of its own."""
    config = parse_config(case.config(), "forecast")
    with _group(case, config), _tensors(config):
        parallel = _spread(case, config)
        optimizer = build_optimizer(parallel.named, parallel.outline.decayed, config.optimizer)
        tracker = Totals()  # type: ignore[no-untyped-call]
        tracker.track_external(parallel.module, optimizer)
        with tracker:
            for _ in range(STEPS):
                tracker.forget_peak()
                _step(config, parallel, optimizer)
        return tracker.peak


@contextlib.contextmanager
def _group(case: Forecast, config: TrainerConfig) -> Iterator[None]:
    if config.parallelism.uses_fsdp:
        store: Any = FakeStore()  # type: ignore[no-untyped-call]
        dist.init_process_group("fake", store=store, rank=0, world_size=case.num_ranks)
    else:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tensors(config: TrainerConfig) -> contextlib.AbstractContextManager[Any]:
    return FakeTensorMode() if config.parallelism.uses_fsdp else contextlib.nullcontext()


def _spread(case: Forecast, config: TrainerConfig) -> Parallelized:
    """As parallelize() does it, but for what ranks agree upon, and for values."""
    runners = [runner_of(block, config.parallelism) for block in range(config.model.layers)]
    model = GPT(config.model, case.vocab_size, runners)
    if not config.parallelism.uses_fsdp:
        return replicated(model, config, CPU, sizes_of(config))
    for part in (trainer.sharding, trainer.classic):
        part.build_mesh = _real_mesh  # type: ignore[attr-defined]
    trainer.classic.FlatParts = lambda *_: None  # type: ignore[attr-defined,misc,assignment]
    version = config.parallelism.fsdp.version
    spread = trainer.sharding.sharded if version == 2 else trainer.classic.classic
    return spread(StartingValues(model, None), config, CPU, sizes_of(config))


def _real_mesh(*arguments: Any) -> Any:
    with unset_fake_temporarily():
        return build_mesh(*arguments)


def _step(config: TrainerConfig, parallel: Parallelized, optimizer: torch.optim.Optimizer) -> None:
    """As Trainer._train_step."""
    batch, accumulation = config.batch, config.batch.accumulation
    optimizer.zero_grad()
    for micro in range(accumulation):
        tokens = torch.zeros(batch.micro, config.model.context + 1, dtype=torch.int64)
        with parallel.gradient_sync(is_last=micro == accumulation - 1):
            with parallel.autocast():
                loss = parallel.model(tokens[:, :-1], tokens[:, 1:])
            parallel.backward(loss / accumulation if accumulation > 1 else loss)
    parallel.clip(config.optimizer.clip_norm)
    optimizer.step()
