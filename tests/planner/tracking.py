"""Peaks of a step as torch's own MemTracker sees them, of the trainer's own functions.

Under FSDP2 all tensors are fake and the ranks are a fake group: shapes without memory. DDP sums
gradients in C++, and FSDP1 compares addresses: both are followed on real ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from forecasts import Forecast
from ranks import run_ranks
from trainer.classic import classic
from trainer.config import TrainerConfig, parse_config
from trainer.mesh import sizes_of
from trainer.model import GPT
from trainer.optim import build_optimizer
from trainer.parallelized import Parallelized
from trainer.recompute import runner_of
from trainer.replicated import replicated
from trainer.sharding import sharded
from trainer.starting import StartingValues

CPU = torch.device("cpu")
TIMEOUT_S = 1000
STEPS = 3  # AdamW makes its state in the first; DDP puts its buckets into order after it


class Totals(MemTracker):  # type: ignore[no-untyped-call]
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


def tracked_peaks(cases: Sequence[Forecast]) -> list[int]:
    """Bytes of rank 0 at the peak of a later step of each case."""
    peaks: dict[int, int] = {}
    for num_ranks in sorted({_num_real(case) for case in cases}):
        part = [case for case in cases if _num_real(case) == num_ranks]
        told = run_ranks(num_ranks, _peaks, part, timeout_s=TIMEOUT_S)
        peaks.update(zip(map(id, part), told[0], strict=True))
    return [peaks[id(case)] for case in cases]


def _num_real(case: Forecast) -> int:
    """Real processes that a case takes; 1 stands for a fake group of any number."""
    return 1 if case.uses_fake else case.num_ranks


def _peaks(cases: Sequence[Forecast]) -> list[int]:
    warnings.simplefilter("ignore")  # of torch, about what the trainer's own tests look at
    faulthandler.dump_traceback_later(TIMEOUT_S - 5)  # instead of that of ranks.py
    return [_peak(case) for case in cases]


def _peak(case: Forecast) -> int:
    config = parse_config(case.config(), "forecast")
    fake = (
        FakeTensorMode(allow_non_fake_inputs=True) if case.uses_fake else contextlib.nullcontext()
    )
    with _group(case):
        with fake:
            model = _model(case, config)
        parallel = _spread(model, config)
        optimizer = build_optimizer(parallel.named, parallel.outline.decayed, config.optimizer)
        tracker = Totals()
        tracker.track_external(parallel.module, optimizer)
        with fake, tracker:
            for _ in range(STEPS):
                tracker.forget_peak()
                _step(config, parallel, optimizer, tracker)
        return tracker.peak


@contextlib.contextmanager
def _group(case: Forecast) -> Iterator[None]:
    if case.uses_fake:
        store: Any = FakeStore()
        dist.init_process_group("fake", store=store, rank=0, world_size=case.num_ranks)
    elif not dist.is_initialized():
        dist.init_process_group("gloo")
    try:
        yield
    finally:
        if case.uses_fake:
            dist.destroy_process_group()


def _model(case: Forecast, config: TrainerConfig) -> GPT:
    runners = [runner_of(block, config.parallelism) for block in range(config.model.layers)]
    return GPT(config.model, case.vocab_size, runners)


def _spread(model: GPT, config: TrainerConfig) -> Parallelized:
    """As parallelize() does it, but for what ranks agree upon, and for values."""
    if not config.parallelism.uses_fsdp:
        return replicated(model, config, CPU, sizes_of(config))
    spread = sharded if config.parallelism.fsdp.version == 2 else classic
    return spread(StartingValues(model, None), config, CPU, sizes_of(config))


def _step(
    config: TrainerConfig, parallel: Parallelized, optimizer: torch.optim.Optimizer, tracker: Totals
) -> None:
    """As Trainer._train_step."""
    batch, accumulation = config.batch, config.batch.accumulation
    optimizer.zero_grad()
    for micro in range(accumulation):
        tracker.reset_mod_stats()
        tokens = torch.zeros(batch.micro, config.model.context + 1, dtype=torch.int64)
        with parallel.gradient_sync(is_last=micro == accumulation - 1):
            with parallel.autocast():
                loss = parallel.model(tokens[:, :-1], tokens[:, 1:])
            parallel.backward(loss / accumulation if accumulation > 1 else loss)
    parallel.clip(config.optimizer.clip_norm)
    optimizer.step()
