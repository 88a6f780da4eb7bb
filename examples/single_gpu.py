"""Training on one GPU, or on the CPU where there is none. docs/tutorial-ddp.md makes it ddp.py.

python examples/single_gpu.py
"""

from __future__ import annotations

import argparse

import torch
from own_model import NextByte, python_docs
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = 1
ROWS = 4608  # of the text: 4096 to learn from, 512 to be judged by
BATCH = 32  # rows of one forward pass
ACCUMULATE = 2  # forward passes of one step


def train(model, loader, optimizer, device) -> float:
    """Goes through the data once and returns the mean loss."""
    model.train()
    total = 0.0
    for index, (rows,) in enumerate(loader):
        rows = rows.to(device)
        last = (index + 1) % ACCUMULATE == 0
        loss = model(rows[:, :-1], rows[:, 1:])
        (loss / ACCUMULATE).backward()
        total += loss.item()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device) -> float:
    """Returns the mean loss of data that the model does not learn from."""
    model.eval()
    total = count = 0.0
    for (rows,) in loader:
        rows = rows.to(device)
        total += model(rows[:, :-1], rows[:, 1:]).item() * len(rows)
        count += len(rows)
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="model.pt")
    parser.add_argument("--in-order", action="store_true", help="no shuffle, to compare losses")
    args = parser.parse_args()

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)

    learn, judge = random_split(TensorDataset(python_docs()[:ROWS]), [4096, 512])
    loader = DataLoader(learn, BATCH, shuffle=not args.in_order)
    judge_loader = DataLoader(judge, BATCH)

    model = NextByte().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(args.epochs):
        loss = train(model, loader, optimizer, device)
        validation = evaluate(model, judge_loader, device)
        print(f"epoch {epoch} loss {loss:.7f} validation {validation:.7f}")
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.save)


if __name__ == "__main__":
    main()
