"""The static look at training scripts: each rule finds its mistake, and not what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checking import RULES, check
from orchestrator.cli import orchestrate
from orchestrator.errors import FaultsError

HEAD = """
import os, random
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.checkpoint import checkpoint
dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(1)
random.seed(1)
"""
NO_SEED = HEAD.replace("torch.manual_seed(1)\nrandom.seed(1)\n", "")
NO_DEVICE = HEAD.replace("torch.cuda.set_device(local_rank)\n", "")


def found(text: str, head: str = HEAD) -> list[tuple[str, str]]:
    """Rule and source line of each finding."""
    return [(fault.key, fault.source_line.strip()) for fault in check(head + text, "train.py")]


BAD = [
    ("no-sampler", "loader = DataLoader(data, batch_size=8, shuffle=True)"),
    ("no-sampler", "loader = torch.utils.data.DataLoader(data, shuffle=True, sampler=None)"),
    ("save-on-every-rank", "torch.save(model.module.state_dict(), 'model.pt')"),
    ("load-without-map-location", "state = torch.load('model.pt')"),
    ("gpu-0", "model = model.to('cuda:0')"),
    ("gpu-0", "model = model.cuda(0)"),
]
OPTIMIZER_FIRST = """
from torch.distributed.fsdp import fully_shard
optimizer = torch.optim.AdamW(net.parameters())
fully_shard(net)
"""
BAD_BLOCKS = [
    ("no-set-epoch", "sampler = DistributedSampler(data)",
     "sampler = DistributedSampler(data)\nfor epoch in range(3):\n    train(sampler)\n"),
    ("module-prefix", "state = model.state_dict()",
     "model = DDP(net)\nstate = model.state_dict()\n"),
    ("attribute-of-wrapper", "logits = model.generate(x)",
     "model = DDP(net)\nlogits = model.generate(x)\n"),
    ("unused-with-checkpointing", "model = DDP(net, find_unused_parameters=True)",
     "y = checkpoint(block, x)\nmodel = DDP(net, find_unused_parameters=True)\n"),
    ("rank-as-gpu", "model = DDP(net, device_ids=[r])",
     "r = dist.get_rank()\nmodel = DDP(net, device_ids=[r])\n"),
    ("rank-as-gpu", "torch.cuda.set_device(r)",
     "r = int(os.environ['RANK'])\ntorch.cuda.set_device(r)\n"),
    ("collective-on-one-rank", "dist.barrier()",
     "if rank == 0:\n    prepare()\n    dist.barrier()\n"),
    ("collective-on-one-rank", "dist.all_reduce(loss)",
     "def log(loss):\n    if rank != 0:\n        return\n    dist.all_reduce(loss)\n"),
    ("forward-on-one-rank", "loss = model(x)",
     "model = DDP(net)\nif rank == 0:\n    loss = model(x)\n"),
    ("optimizer-before-sharding", "optimizer = torch.optim.AdamW(net.parameters())",
     OPTIMIZER_FIRST),
]  # fmt: skip
SHARDED_FIRST = """
from torch.distributed.fsdp import fully_shard
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
"""
EACH_EPOCH = """
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
"""
GOOD = [
    SHARDED_FIRST,
    EACH_EPOCH,
    "loader = DataLoader(data, batch_size=8)",  # an order that all ranks share: for validation
    "loader = DataLoader(data.shard(rank), shuffle=True)",
    "sampler = DistributedSampler(data, shuffle=False)\nfor epoch in range(3):\n    pass\n",
    "if rank == 0:\n    torch.save(model.module.state_dict(), 'model.pt')",
    "def save():\n    torch.save(net.state_dict(), 'm.pt')\nif dist.get_rank() == 0:\n    save()",
    "def save():\n    if not is_main_process():\n        return\n    torch.save(net, 'm.pt')",
    "torch.save(part, f'optimizer-{rank}.pt')",
    "state = torch.load('model.pt', map_location='cpu')",
    "model = net.cuda()",  # the current device, which is set
    "model = DDP(net, device_ids=[local_rank])\nstate = model.module.state_dict()",
    "model = DDP(net)\nwith model.no_sync():\n    model(x)",
    "model = DDP(net)\nmodel = model.module\nmodel.generate(x)",
    "y = checkpoint(block, x, use_reentrant=False)\nDDP(net, find_unused_parameters=True)",
    "if rank == 0:\n    prepare()\ndist.barrier()",
    "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
    "if rank == 0:\n    prepare()\n    dist.barrier()\nif rank != 0:\n    dist.barrier()",
    "if rank != -1:\n    dist.barrier()",  # whether there are several ranks at all
    "gpu = rank % torch.cuda.device_count()\ntorch.cuda.set_device(gpu)",
    "model = DDP(net)\nif rank == 0:\n    model.module(x)",
]


@pytest.mark.parametrize(("rule", "line"), BAD)
def test_a_line_that_goes_wrong_is_found(rule: str, line: str) -> None:
    assert found(line) == [(rule, line)]


@pytest.mark.parametrize(("rule", "line", "text"), BAD_BLOCKS, ids=lambda value: value[:30])
def test_a_part_that_goes_wrong_is_found(rule: str, line: str, text: str) -> None:
    assert found(text) == [(rule, line)]


@pytest.mark.parametrize("text", GOOD)
def test_nothing_is_said_of_what_is_right(text: str) -> None:
    assert found(text) == []


def test_splits_without_a_seed() -> None:
    text = "a, b = torch.utils.data.random_split(data, [8, 2])\nrandom.shuffle(files)"
    assert [rule for rule, _ in found(text, NO_SEED)] == ["unseeded-split"] * 2
    assert found(text) == []
    assert found("from utils import set_seed\nset_seed(1)\nrandom.shuffle(files)", NO_SEED) == []
    seeded = "torch.utils.data.random_split(d, [8, 2], generator=torch.Generator().manual_seed(1))"
    assert found(seeded, NO_SEED) == []


def test_the_current_device_where_none_is_set() -> None:
    assert [rule for rule, _ in found("net.cuda()\nx.to('cuda')", NO_DEVICE)] == ["gpu-0"] * 2


def test_a_script_of_one_process_is_left_alone() -> None:
    assert check("import torch\ntorch.save(1, 'x')\ntorch.load('x')", "train.py") == []


def test_every_rule_is_tried_here() -> None:
    tried = {rule for rule, *_ in [*BAD, *BAD_BLOCKS]} | {"unseeded-split"}
    assert tried == {rule.name for rule in RULES}


def test_a_line_can_be_left_out_by_a_comment_and_a_rule_by_its_name() -> None:
    text = f"{HEAD}state = torch.load('model.pt')"
    assert check(f"{text}  # check: load-without-map-location", "t.py") == []
    assert check(f"{text}  # check: gpu-0", "t.py") != []
    assert check(text, "t.py", ["load-without-map-location"]) == []


@given(st.text(max_size=200))
def test_any_text_gives_findings_or_a_fault(text: str) -> None:
    try:
        assert {fault.key for fault in check(HEAD + text, "t.py")} <= {r.name for r in RULES}
    except FaultsError as error:
        (fault,) = error.faults
        assert (fault.message[:9], fault.fix) == ("no Python", "mend it first")


def test_the_command(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{HEAD}state = torch.load('model.pt')\n")
    run = CliRunner().invoke(orchestrate, ["check", str(script)])
    assert run.exit_code == 1
    assert f"{script}:14:9 load-without-map-location: tensors go back" in run.output
    assert "fix: give torch.load map_location" in run.output
    as_json = CliRunner().invoke(orchestrate, ["check", str(script), "--json"])
    (finding,) = json.loads(as_json.output)["findings"]
    assert (finding["line"], finding["key"]) == (14, "load-without-map-location")
    script.write_text("x = (")
    assert CliRunner().invoke(orchestrate, ["check", str(script)]).exit_code != 0
    script.write_text(HEAD)
    clean = CliRunner().invoke(orchestrate, ["check", str(script)])
    assert (clean.exit_code, clean.output) == (0, "nothing found\n")
