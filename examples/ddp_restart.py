"""ddp.py in a form that is stopped and goes on later without a change of its numbers.

It follows docs/contract.md, by which orchestrate-node starts it. By torchrun alone it runs too, and
keeps its state in the working folder.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from own_model import NextByte, python_docs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED, BATCH, SAVE_EVERY = 1, 64, 32
RUN = Path(os.environ.get("ORCHESTRATE_RUN_DIR", "."))
NUMBER = int(os.environ.get("ORCHESTRATE_ATTEMPT", "0"))  # 0: no launcher
ATTEMPT = RUN / "attempts" / str(NUMBER)
STATE = RUN / "state.pt"


def stop_wanted(device) -> bool:
    """Whether somebody asks for a stop. All ranks get one answer, whichever saw the file first."""
    wanted = torch.tensor(int((ATTEMPT / "drain").exists()), device=device)
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    return wanted.item() > 0


def publish(path: Path, content: bytes) -> None:
    """Writes a file under another name first, so that no one ever reads half of it."""
    aside = path.with_name(f".{path.name}")
    with aside.open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    aside.replace(path)


def save(model, optimizer, step: int) -> None:
    """Keeps what the next attempt goes on from."""
    memory = io.BytesIO()
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, memory)
    publish(STATE, memory.getvalue())


def tell(step: int, loss: float) -> None:
    """Progress, for people and for `orchestrate`."""
    line = json.dumps({"step": step, "attempt": NUMBER, "loss": loss})
    print(line)
    with (RUN / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")


def train(model, optimizer, loader, step: int, steps: int, device) -> int:
    """Trains on from a step to the end or until a stop is wanted. Returns the steps done."""
    while step < steps:
        loader.sampler.set_epoch(step // len(loader))
        for (rows,) in itertools.islice(loader, step % len(loader), None):
            rows = rows.to(device)
            loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            stop = stop_wanted(device)
            if dist.get_rank() == 0:
                tell(step, mean.item())
                if stop or step % SAVE_EVERY == 0 or step == steps:
                    save(model, optimizer, step)
            if stop or step == steps:
                return step
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=192)
    steps = parser.parse_args().steps

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    learn = TensorDataset(python_docs()[:4096])
    sampler = DistributedSampler(learn, seed=SEED)
    loader = DataLoader(learn, BATCH // dist.get_world_size(), sampler=sampler)

    torch.manual_seed(SEED)
    model = NextByte().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if STATE.exists():
        state = torch.load(STATE, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)

    step = train(model, optimizer, loader, step, steps, device)
    if dist.get_rank() == 0 and NUMBER:
        outcome = {"version": 1, "outcome": "done" if step >= steps else "drained", "step": step}
        publish(ATTEMPT / "outcome.json", json.dumps(outcome).encode())
        if step >= steps:
            publish(RUN / "DONE", json.dumps(outcome).encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
