"""The trainer's step against a bare torch DDP loop: same model, data order, optimizer, two ranks.

Both live in the same two processes and take turns, block by block, in an order that changes from
round to round; the CPU time of the process is what counts. The trainer's blocks hold all that it
does in ordinary steps: data, clipping, schedule, stop protocol, and a metrics line each 10 steps.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import compare
from trainer.config import TrainerConfig, parse_config
from trainer.contract import Contract
from trainer.loop import Trainer
from trainer.main import process_group
from trainer.model import build_model
from trainer.optim import build_optimizer
from trainer.samples import SampleStream
from trainer.stop import StopProtocol

NUM_RANKS = 2
ROUNDS = 24
DEADLINE_S = 900

# name: layers, heads, width, context, micro-batch, steps of one block
SIZES = {
    "compute-bound (d=256, L=4, T=128, B=4)": (4, 4, 256, 128, 4, 10),
    "overhead-bound (d=32, L=1, T=32, B=1)": (1, 2, 32, 32, 1, 100),
}


def rows() -> list[str]:
    """Measure both sizes, and return lines for the README's table."""
    lines = []
    for name, size in SIZES.items():
        trainer, bare = measure(*size)
        pair = compare(trainer, bare)
        limit = "interval below 1.03" if name.startswith("compute") else "+ 0.5 ms"
        lines.append(pair.row(f"step, {name}: trainer : bare DDP, CPU time", limit))
    return lines


def measure(
    layers: int, heads: int, width: int, context: int, micro: int, steps: int
) -> tuple[list[float], list[float]]:
    """CPU seconds per step of rank 0, one figure a round: of the trainer, of the bare loop."""
    config = configuration(layers, heads, width, context, micro)
    with tempfile.TemporaryDirectory() as folder:
        forking = multiprocessing.get_context("fork")
        pairs = [forking.Pipe() for _ in range(NUM_RANKS)]
        ranks = [
            forking.Process(target=rank_main, args=(rank, config, folder, steps, pairs[rank][1]))
            for rank in range(NUM_RANKS)
        ]
        for process in ranks:
            process.start()
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for here, _ in pairs:
            here.send(store.port)
        answered = pairs[0][0].poll(DEADLINE_S)
        result: tuple[list[float], list[float]] = pairs[0][0].recv() if answered else ([], [])
        for process in ranks:
            process.join(60)
    return result


def configuration(layers: int, heads: int, width: int, context: int, micro: int) -> dict[str, Any]:
    """A trainer.json whose run never ends by itself and writes no checkpoint."""
    golden = Path(__file__).parent.parent / "tests/golden/files/hello.local.trainer.json"
    config: dict[str, Any] = copy.deepcopy(json.loads(golden.read_text("utf-8")))
    config["num_ranks"] = NUM_RANKS
    config["model"] |= {"layers": layers, "heads": heads, "width": width, "context": context}
    config["batch"] = {"micro": micro, "accumulation": 1}
    config["data"]["samples"] = 4096
    config["steps"] = 10**6
    config["checkpoint"]["every"] = 10**6
    return config


def rank_main(
    rank: int, raw: dict[str, Any], folder: str, steps: int, connection: Connection
) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS),
        "LOCAL_WORLD_SIZE": str(NUM_RANKS), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(connection.recv()), "GLOO_SOCKET_IFNAME": "lo",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        "ORCHESTRATE_RUN_DIR": f"{folder}/run", "ORCHESTRATE_ATTEMPT": "1",
        "ORCHESTRATE_CHECKPOINT_DIR": f"{folder}/run/checkpoints", "ORCHESTRATE_WORKDIR": folder,
    }  # fmt: skip
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # metrics lines also go to standard output
    config, contract = parse_config(raw, "benchmark"), Contract.from_environ()
    (contract.run_dir / "attempts" / "1").mkdir(parents=True, exist_ok=True)
    with process_group(config, contract) as store:
        device = torch.device("cpu")
        trainer = Trainer(config, contract, StopProtocol(store, Path("none"), device), device)
        connection.send(take_turns(trainer, Bare(config, trainer), steps))


def take_turns(trainer: Trainer, bare: Bare, steps: int) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, ROUNDS):
        contestants = [(0, trainer.advance), (1, bare.step)]
        for which, advance in contestants if number % 2 else reversed(contestants):
            began = time.process_time()
            for _ in range(steps):
                advance()
            if number >= 0:
                times[which].append((time.process_time() - began) / steps)
    return times


class Bare:
    """What one would write by hand: no metrics, no stop, no schedule."""

    def __init__(self, config: TrainerConfig, trainer: Trainer) -> None:
        torch.manual_seed(config.seed)
        module = build_model(config, trainer.corpus.vocab_size)
        self.model = DistributedDataParallel(
            module, gradient_as_bucket_view=config.ddp.gradient_as_bucket_view
        )
        self.parameters = list(self.model.parameters())
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.clip_norm = config.optimizer.clip_norm
        contract = trainer.contract
        self.samples = trainer.corpus.train
        self.order = iter(
            SampleStream(
                len(self.samples), config.batch.micro, contract.rank, NUM_RANKS, config.seed
            )
        )

    def step(self) -> None:
        batch: Tensor = self.samples[next(self.order)]
        self.optimizer.zero_grad()
        loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimizer.step()


if __name__ == "__main__":
    print("\n".join(rows()))
