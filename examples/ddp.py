"""The same training on all GPUs, or on CPU ranks where there are none: single_gpu.py by DDP.

torchrun --standalone --nproc-per-node=2 examples/ddp.py
"""

from __future__ import annotations

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from own_model import NextByte, python_docs
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split

SEED = 1
ROWS = 4608  # of the text: 4096 to learn from, 512 to be judged by
BATCH = 32  # rows of one forward pass, of all ranks together
ACCUMULATE = 2  # forward passes of one step


def train(model, loader, optimizer, device) -> float:
    """Goes through the data once and returns the mean loss of all ranks."""
    model.train()
    total = torch.zeros((), device=device)
    for index, (rows,) in enumerate(loader):
        rows = rows.to(device)
        last = (index + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = model(rows[:, :-1], rows[:, 1:])
            (loss / ACCUMULATE).backward()
        total += loss.detach()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(total)
    return total.item() / len(loader) / dist.get_world_size()


@torch.no_grad()
def evaluate(model, loader, device) -> float:
    """Returns the mean loss of data that the model does not learn from, over all ranks."""
    model.eval()
    sums = torch.zeros(2, device=device)  # of losses, and of rows
    for (rows,) in loader:
        rows = rows.to(device)
        loss = model.module(rows[:, :-1], rows[:, 1:])
        sums += torch.stack([loss * len(rows), torch.full_like(loss, len(rows))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="model.pt")
    parser.add_argument("--in-order", action="store_true", help="no shuffle, to compare losses")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if BATCH % world:
        raise SystemExit(f"{world} ranks cannot share a batch of {BATCH} rows evenly")
    torch.manual_seed(SEED)

    learn, judge = random_split(TensorDataset(python_docs()[:ROWS]), [4096, 512])
    sampler = DistributedSampler(learn, shuffle=not args.in_order, seed=SEED)
    loader = DataLoader(learn, BATCH // world, sampler=sampler)
    judge_loader = DataLoader(Subset(judge, range(rank, len(judge), world)), BATCH // world)

    model = NextByte().to(device)
    torch.manual_seed(SEED + rank)
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train(model, loader, optimizer, device)
        validation = evaluate(model, judge_loader, device)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.7f} validation {validation:.7f}")
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, args.save)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
