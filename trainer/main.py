"""One rank from its start to its exit code: configuration, group, training, outcome."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trainer import phase, signals
from trainer.config import TrainerConfig, read_config
from trainer.contract import (
    KIND_CONFIGURATION,
    KIND_FAILURE,
    OUTCOME_DONE,
    OUTCOME_DRAINED,
    ConfigurationError,
    Contract,
    record_collectives,
)
from trainer.devices import device_of
from trainer.elastic import for_world
from trainer.library_log import RECORDED_COLLECTIVES, kept
from trainer.limits import group_timeout_s
from trainer.watchdog import Watchdog

if TYPE_CHECKING:  # torch takes a second to import; a fault in the configuration comes first
    import torch
    from torch.distributed.distributed_c10d import Store

    from trainer.loop import Trainer

# How long a rank that got a signal waits for the others to start: it may come from torchrun, since
# one of them has died. Whoever wants a drain makes the file, which is no signal.
START_GRACE_S = 5.0
SAMPLE_BYTES = 200
PROMPT_TOKENS = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this rank; returns its exit code, 0 or 1. Why it failed is in errors/rank-R.json."""
    parser = argparse.ArgumentParser(prog="trainer", description="One rank of a training run.")
    parser.add_argument("--config", type=Path, required=True, help="trainer.json, absolute path")
    config_file: Path = parser.parse_args(arguments).config
    try:
        contract = Contract.from_environ()
    except ConfigurationError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    try:
        run(config_file, contract)
    except ConfigurationError as error:
        print(f"trainer: rank {contract.rank}: {error}", file=sys.stderr)
        _put_on_record(contract, KIND_CONFIGURATION, str(error))
        return 1
    except Exception as error:  # whatever ends a rank must be on record before it exits
        traceback.print_exc()
        _put_on_record(contract, KIND_FAILURE, f"{type(error).__name__}: {error}")
        return 1
    return 0


def _put_on_record(contract: Contract, kind: str, message: str) -> None:
    try:
        contract.write_error(kind, message)
    except OSError as error:  # the disk may be what failed in the first place
        print(f"trainer: rank {contract.rank}: not on record: {error}", file=sys.stderr)


def run(config_file: Path, contract: Contract) -> None:
    """Train as the file says. Raises ConfigurationError for what would fail again."""
    config = for_world(read_config(config_file), contract.world_size)
    contract.enter_workdir()
    if contract.is_done():
        if contract.rank == 0:
            contract.write_outcome(OUTCOME_DONE, contract.done_step())
        return
    _train(config, contract)


def _train(config: TrainerConfig, contract: Contract) -> None:
    signals.handle()
    watchdog = Watchdog(config, contract)
    watchdog.start()
    try:
        phase.enter("start", 0)
        with kept(config, contract):
            device = device_of(config.device, contract)
            with process_group(config, contract) as store:
                _train_in_group(config, contract, store, device)
    finally:
        watchdog.finish()


def _train_in_group(
    config: TrainerConfig, contract: Contract, store: Store, device: torch.device
) -> None:
    from trainer.loop import Trainer
    from trainer.stop import Drained, StopProtocol

    stop = StopProtocol(store, contract.drain_file, device)
    try:
        trainer = Trainer(config, contract, stop, device)
    except Drained as drained:
        _leave_early(config, contract, drained.step)
        return
    with contextlib.closing(trainer):
        _announce(trainer)
        outcome = trainer.run()
        phase.enter("exit", trainer.progress.step)
        trainer.wait_for("exit")
        if contract.rank == 0:
            _finish(trainer, outcome)


def _leave_early(config: TrainerConfig, contract: Contract, step: int) -> None:
    """The end of an attempt that was asked to stop before it trained: nothing new is saved.

    step: as restored. Before that, the name of the newest checkpoint must do: reading it takes
    long.
    """
    from trainer.checkpoint import newest_step
    from trainer.ledger import Ledger
    from trainer.metrics import Clock, Metrics

    if config.checkpoint.resume == "auto":
        step = step or newest_step(contract.checkpoint_dir)
    phase.enter("exit", step)
    if contract.rank == 0:
        with contextlib.closing(Metrics(contract, False, step)) as metrics:
            metrics.event("end", step, outcome=OUTCOME_DRAINED)
        ledger = Ledger(contract, step, restore_s=0.0)
        ledger.outcome = OUTCOME_DRAINED
        ledger.close(step, Clock())
        contract.write_outcome(OUTCOME_DRAINED, step)


@contextlib.contextmanager
def process_group(config: TrainerConfig, contract: Contract) -> Iterator[Store]:
    """The default process group while the block runs; gives the rendezvous store.

    group_timeout_s is the longest wait for the other ranks, here and in every collective until the
    first step is over. Nothing that holds the group, as a DDP model does, may outlive the block:
    such a holder would end the group with Python's lock held and wait for threads that may need
    the lock.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import set_debug_level_from_env
    from torch.distributed.rendezvous import rendezvous

    record_collectives(RECORDED_COLLECTIVES)
    set_debug_level_from_env()  # it was read when torch was imported
    timeout = datetime.timedelta(seconds=group_timeout_s(config))
    phase.enter("rendezvous", 0)
    with signals.limited(START_GRACE_S, lambda: _leave_alone(contract)):
        store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        if (rank, world_size) != (contract.rank, contract.world_size):
            raise RuntimeError(f"the rendezvous made this rank {rank} of {world_size}")
        store.set_timeout(timeout)
        dist.init_process_group(
            config.backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    yield store
    # Not after an error: the other ranks may never come.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _leave_alone(contract: Contract) -> None:
    """End this rank, which was asked to stop while it waits for a rank that does not come."""
    message = f"asked to stop, and not all ranks were there {START_GRACE_S:g} s later"
    print(f"trainer: rank {contract.rank}: {message}", file=sys.stderr, flush=True)
    _put_on_record(contract, KIND_FAILURE, message)
    os._exit(1)


def _announce(trainer: Trainer) -> None:
    import torch.distributed as dist

    hosts: list[Any] = [None] * trainer.contract.world_size
    dist.all_gather_object(hosts, socket.gethostname())
    _warn(trainer)
    trainer.metrics.event(
        "start",
        trainer.progress.step,
        world_size=trainer.contract.world_size,
        num_nodes=trainer.contract.num_nodes,
        hosts=hosts,
        parameters=trainer.parallel.outline.num_parameters,
        resumed_from=trainer.resumed_from,
        steps=trainer.config.steps,
    )


def _warn(trainer: Trainer) -> None:
    """Say loudly, on rank 0, what of the run is not as its last checkpoint left it."""
    if trainer.contract.rank != 0:
        return
    step, resumed_from = trainer.progress.step, trainer.resumed_from
    for error in trainer.broken:
        print(f"trainer: passed over a broken checkpoint: {error}", file=sys.stderr)
        trainer.metrics.event("broken", step, path=error.path.name, reason=error.reason)
    if trainer.broken and resumed_from is None:
        print("trainer: no checkpoint is whole: training from step 0", file=sys.stderr)
    for change in trainer.changes:
        print(f"trainer: changed since {resumed_from}: {change}", file=sys.stderr)
    if trainer.changes:
        changes = [asdict(change) for change in trainer.changes]
        trainer.metrics.event("changed", step, resumed_from=resumed_from, changes=changes)


def _finish(trainer: Trainer, outcome: str) -> None:
    """Rank 0's last words: a sample, the DONE marker and the outcome that all ranks agreed on."""
    step = trainer.progress.step
    trainer.ledger.outcome = outcome
    if outcome == OUTCOME_DONE:
        began = perf_counter()
        text = _sample_text(trainer)
        trainer.clock.evaluation_s += perf_counter() - began
        if text is not None:
            trainer.metrics.event("sample", step, text=text)
        trainer.contract.write_done(step)
    trainer.metrics.event("end", step, outcome=outcome)
    trainer.contract.write_outcome(outcome, step)


def _sample_text(trainer: Trainer) -> str | None:
    """Text that the model writes on, None where its tokens are not bytes, or rank 0 lacks a part
    of it: a gathering for each byte would take longer than it is worth."""
    import numpy as np

    from trainer.model import GPT, generate

    parallel, corpus = trainer.parallel, trainer.corpus
    if parallel.in_lockstep or not (isinstance(parallel.bare, GPT) and corpus.bytes_are_tokens):
        return None
    first = (corpus.validation or corpus.train)[np.zeros(1, np.int64)]  # [1, T + 1]
    prompt = first[0, :PROMPT_TOKENS].to(trainer.device)
    tokens = generate(parallel.module, prompt, SAMPLE_BYTES, trainer.config.seed)
    return bytes(tokens.clamp(max=255).tolist()).decode(errors="replace")
