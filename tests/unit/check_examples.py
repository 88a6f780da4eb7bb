"""For each rule of `orchestrate check` a part of a script that goes wrong, and how it is right.

They stand in docs/check.md.
"""

from __future__ import annotations

# What is above each part. The first one is the usual, the others are for parts that name them.
HEAD = """
import os, random
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.checkpoint import checkpoint
dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(1)
random.seed(1)
"""
NO_SEED = HEAD.replace("torch.manual_seed(1)\nrandom.seed(1)\n", "")
NO_DEVICE = HEAD.replace("torch.cuda.set_device(local_rank)\n", "")
ONE_PROCESS = """
import torch
from torch.utils.data import DataLoader
"""
HEADS = {"gradients-apart": ONE_PROCESS, "unseeded-split": NO_SEED, "data-parallel": ONE_PROCESS}

# Rule: what goes wrong (in the line that is marked), what is right.
EXAMPLES: dict[str, tuple[str, str]] = {
    "gradients-apart": (
        """\
for x, y in loader:
    loss = model(x, y)
    loss.backward()  # <-
    optimizer.step()
""",
        """\
torch.distributed.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(model)
for x, y in loader:
    loss = model(x, y)
    loss.backward()
    optimizer.step()
""",
    ),
    "no-sampler": (
        """\
loader = DataLoader(data, batch_size=8, shuffle=True)  # <-
""",
        """\
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
""",
    ),
    "sampler-and-shuffle": (
        """\
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler, shuffle=True)  # <-
""",
        """\
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, sampler=sampler)
""",
    ),
    "unused-sampler": (
        """\
sampler = DistributedSampler(data)  # <-
loader = DataLoader(data, batch_size=8)
""",
        """\
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
""",
    ),
    "no-set-epoch": (
        """\
sampler = DistributedSampler(data)  # <-
loader = DataLoader(data, sampler=sampler)
for epoch in range(3):
    train(loader)
""",
        """\
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    train(loader)
""",
    ),
    "unseeded-split": (
        """\
learn, judge = torch.utils.data.random_split(data, [0.9, 0.1])  # <-
""",
        """\
torch.manual_seed(1)
learn, judge = torch.utils.data.random_split(data, [0.9, 0.1])
""",
    ),
    "same-stream": (
        """\
class Lines(IterableDataset):  # <-
    def __iter__(self):
        return iter(open(self.path))
""",
        """\
class Lines(IterableDataset):
    def __iter__(self):
        return itertools.islice(open(self.path), dist.get_rank(), None, dist.get_world_size())
""",
    ),
    "save-on-every-rank": (
        """\
torch.save(model.module.state_dict(), "model.pt")  # <-
""",
        """\
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
""",
    ),
    "module-prefix": (
        """\
model = DDP(net)
state = model.state_dict()  # <-
""",
        """\
model = DDP(net)
state = model.module.state_dict()
""",
    ),
    "load-without-map-location": (
        """\
state = torch.load("model.pt")  # <-
""",
        """\
state = torch.load("model.pt", map_location="cpu")
""",
    ),
    "log-on-every-rank": (
        """\
wandb.init(project="demo")  # <-
""",
        """\
if rank == 0:
    wandb.init(project="demo")
""",
    ),
    "download-on-every-rank": (
        """\
data = CIFAR10("data", download=True)  # <-
""",
        """\
if rank == 0:
    CIFAR10("data", download=True)
dist.barrier()
data = CIFAR10("data", download=False)
""",
    ),
    "attribute-of-wrapper": (
        """\
model = DDP(net)
text = model.generate(prompt)  # <-
""",
        """\
model = DDP(net)
text = model.module.generate(prompt)
""",
    ),
    "unused-with-checkpointing": (
        """\
y = checkpoint(block, x, use_reentrant=True)
model = DDP(net, find_unused_parameters=True)  # <-
""",
        """\
y = checkpoint(block, x, use_reentrant=False)
model = DDP(net, find_unused_parameters=True)
""",
    ),
    "optimizer-before-sharding": (
        """\
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.AdamW(net.parameters())  # <-
fully_shard(net)
""",
        """\
from torch.distributed.fsdp import fully_shard

fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
""",
    ),
    "data-parallel": (
        """\
torch.distributed.init_process_group("nccl")
model = torch.nn.DataParallel(net)  # <-
""",
        """\
torch.distributed.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(net)
""",
    ),
    "no-sync-too-late": (
        """\
model = DDP(net)
loss = model(x)
with model.no_sync():  # <-
    loss.backward()
""",
        """\
model = DDP(net)
with model.no_sync():
    loss = model(x)
    loss.backward()
""",
    ),
    "gpu-0": (
        """\
model = net.to("cuda:0")  # <-
""",
        """\
model = net.to(f"cuda:{local_rank}")
""",
    ),
    "rank-as-gpu": (
        """\
r = dist.get_rank()
torch.cuda.set_device(r)  # <-
""",
        """\
r = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(r)
""",
    ),
    "collective-on-one-rank": (
        """\
if rank == 0:
    prepare()
    dist.barrier()  # <-
""",
        """\
if rank == 0:
    prepare()
dist.barrier()
""",
    ),
    "forward-on-one-rank": (
        """\
model = DDP(net)
if rank == 0:
    y = model(x)  # <-
""",
        """\
model = DDP(net)
if rank == 0:
    y = model.module(x)
""",
    ),
    "stop-on-one-rank": (
        """\
for x in loader:
    loss = model(x)
    loss.backward()
    if rank == 0 and too_long():
        break  # <-
""",
        """\
for x in loader:
    loss = model(x)
    loss.backward()
    stop = torch.tensor(rank == 0 and too_long())
    dist.broadcast(stop, src=0)
    if stop:
        break
""",
    ),
}
