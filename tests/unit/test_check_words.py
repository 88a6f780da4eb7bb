"""Usual spellings of mistakes that `orchestrate check` has to see, and what only looks like one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from check_examples import HEAD, NO_DEVICE, ONE_PROCESS
from orchestrator.checking import check, examine
from orchestrator.errors import FaultsError

Cli = Callable[..., tuple[int, str, str]]
ROUND = "for x in l:\n    loss = model(x)\n    loss.backward()\n"
DEEPER = ROUND.replace("\n", "\n    ")
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = FSDP(n)\n"
SHARD = "from torch.distributed.fsdp import fully_shard\n"
FOUND = [
    ("around-the-wrapper", "model = DDP(n)\nloss = model.loss_of(x)\nloss.backward()"),
    ("around-the-wrapper", "model = DDP(n)\nloss = model.module(x)\n(loss / 2).backward()"),
    ("sharded-save", f"{FSDP}torch.save(m.state_dict(), 'x')"),
    ("sharded-on-one-rank", f"{FSDP}if rank == 0:\n    torch.save(m.state_dict(), 'x')"),
    ("gradients-apart", f"model = Net().cuda()\no = torch.optim.SGD(model.parameters())\n{ROUND}"),
    ("no-sampler", "DataLoader(data, batch // dist.get_world_size(), shuffle=True)"),
    ("no-sampler", "DataLoader(data, 8, True)"),
    ("no-sampler", "DataLoader(data, sampler=torch.utils.data.RandomSampler(data))"),
    ("no-sampler", "DataLoader(data, **dict(shuffle=True))"),
    ("gpu-0", "device = 'cuda:0' if torch.cuda.is_available() else 'cpu'\nnet.to(device)"),
    ("gpu-0", "torch.device('cuda', 0)"),
    ("gpu-0", "net.to(0)"),
    ("gpu-0", "net.cuda(device=0)"),
    ("gpu-0", "x = torch.zeros(3, device='cuda:0')"),
    ("rank-as-gpu", "net.to(rank)"),
    ("rank-as-gpu", "net.to('cuda:{}'.format(rank))"),
    ("rank-as-gpu", "torch.cuda.set_device(dist.get_rank())"),
    ("rank-as-gpu", "model = DDP(net, [rank])"),
    ("no-set-epoch", "s = DistributedSampler(d)\nfor _ in range(args.num_epochs):\n    f(s)"),
    ("no-set-epoch", "s = DistributedSampler(d)\nwhile epoch < 3:\n    f(s)"),
    ("collective-on-one-rank", "rank == 0 and dist.barrier()"),
    ("collective-on-one-rank", "while rank == 0:\n    dist.barrier()"),
    ("collective-on-one-rank", "match rank:\n    case 0:\n        dist.barrier()"),
    ("collective-on-one-rank", "if rank == 0:\n    dist.all_reduce(t, group=None)"),
    ("collective-on-one-rank", "if rank == 0:\n    dist.all_reduce(group_loss)"),
    ("stop-on-one-rank", f"def f():\n    {DEEPER}    if rank == 0 and bad:\n            return"),
    ("stop-on-one-rank", f"{ROUND}    if rank == 0 and bad:\n        sys.exit()"),
    ("no-sync-too-late", "m = DDP(n)\nwith c if last else m.no_sync():\n    loss.backward()"),
    ("attribute-of-wrapper", "model = DDP(model) if ddp else model\nmodel.foo()"),
]  # fmt: skip
SILENT = [
    "if cfg.lora_rank > 0:\n    dist.all_reduce(x)",
    "if rank >= world_size:\n    raise ValueError\ndist.barrier()",
    "if not args.gpu:\n    dist.barrier()",
    "if rank != 0:\n    dist.barrier()\n    exit()\nprepare()\ndist.barrier()",
    f"{ROUND}    stop = rank == 0 and early()\n    stop = all(t)\n    if stop:\n        break",
    "@rank_zero_only\ndef save():\n    torch.save(x, 'y')\nsave()",
    "if int(os.environ['SLURM_PROCID']) == 0:\n    torch.save(x, 'y')",
    "if rank != 0:\n    sys.exit()\ntorch.save(x, 'y')",
    "assert rank == 0\ntorch.save(x, 'y')",
    "match rank:\n    case 0:\n        torch.save(x, 'y')",
    "master: bool = rank == 0 if ddp else True\nif master:\n    torch.save(x, 'y')",
    "def writer():\n    return dist.get_rank() == 0\nif writer():\n    torch.save(x, 'y')",
    "path = f'shard-{rank}.pt'\ntorch.save(x, path)",
    "with open(f'x{rank}', 'wb') as f:\n    torch.save(x, f)",
    "model = DDP(n)\ndef evaluate(model):\n    if rank == 0:\n        model(x)",
    "class A:\n  def f(self): self.m = DDP(n)\nclass E:\n  def g(self): x = self.m.state_dict()",
    "model = DDP(n)\ntry:\n    c = model.module.c\nexcept AttributeError:\n    c = model.c",
    "part = data[rank::4]\nDataLoader(part, shuffle=True)",
    "DataLoader(torch.utils.data.Subset(d, range(rank, 9, 4)), shuffle=True)",
    "if rank:\n    dist.barrier()\nCIFAR10('d', download=True)\nif rank == 0:\n    dist.barrier()",
    "s = DistributedSampler(d, 4, rank, False)\nfor epoch in range(3):\n    f(s)",
    f"{SHARD}o = torch.optim.Adam(critic.parameters())\nfully_shard(net)",
    "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']\nnet.to('cuda:0')",
    "logger.info('cuda:0')",
]  # fmt: skip
UNJUDGED = [
    ("accelerate", "from accelerate import Accelerator\n" + ROUND),
    ("nor trains", "x = 1"),
    ("local_rank", f"{ONE_PROCESS}r = args.local_rank\n{ROUND}    o.step()"),
]


@pytest.mark.parametrize(("rule", "text"), FOUND)
def test_a_usual_spelling_is_found(rule: str, text: str) -> None:
    assert rule in {fault.key for fault in check(HEAD + text, "t.py")}


@pytest.mark.parametrize("text", SILENT)
def test_what_only_looks_like_a_mistake_is_none(text: str) -> None:
    assert [fault.key for fault in check(HEAD + text, "t.py")] == []


def test_a_device_that_another_function_may_set() -> None:
    assert check(f"{NO_DEVICE}import utils\nutils.init_distributed_mode(a)\nn.cuda()", "t.py") == []


def test_ranks_that_the_script_starts_itself_are_of_one_node() -> None:
    text = f"{HEAD}import torch.multiprocessing as mp\nmp.spawn(f)\ntorch.cuda.set_device(rank)"
    assert check(text, "t.py") == []


@pytest.mark.parametrize(
    "line",
    ["trainer = make()", "lora(rank=8)", "df['rank'] = 3", "model = torch.nn.DataParallel(n)"],
)
def test_an_ordinary_script_is_judged(line: str) -> None:
    text = f"{ONE_PROCESS}{line}\n{ROUND}    o.step()\ntorch.save(model, 'x')"
    assert "save-on-every-rank" in {fault.key for fault in check(text, "t.py")}


@pytest.mark.parametrize(("why", "text"), UNJUDGED)
def test_a_file_that_is_not_judged_says_why(why: str, text: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(text)
    code, out, _ = cli("check", "t.py")
    assert (code, "nothing found" in out, "t.py: not judged: " in out) == (0, False, True)
    assert why in examine(text, "t.py").unjudged


def test_accepted_lines_do_not_hide_others_and_what_is_left_out_is_counted(
    cli: Cli, tmp_path: Path
) -> None:
    accepted = "torch.save(x, 'y')  # check: ok save-on-every-rank\n" * 25
    (tmp_path / "t.py").write_text(HEAD + accepted + "torch.save(x, 'y')\n" * 23)
    assert "t.py: 3 more of save-on-every-rank" in cli("check", "t.py")[1]


def test_places_count_characters_and_lines_as_python_does() -> None:
    (fault,) = check(f"{HEAD}s = 'a\u2028é\x0c'; torch.save(x, 'y')", "t.py")
    assert fault.position is not None
    assert fault.source_line[fault.position.column - 1 :] == "torch.save(x, 'y')"


def test_an_expression_of_many_terms_and_one_of_too_many() -> None:
    assert check(f"{HEAD}(a{' + a' * 330}).x = 1", "t.py") == []
    with pytest.raises(FaultsError, match=r"nested too deeply|no Python"):
        check(f"{HEAD}x = {'-' * 90000}1", "t.py")


def test_a_notebook_and_a_pipe_are_refused_and_the_others_findings_kept(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "n.ipynb").write_text('{"cells": [], "nbformat": 4}')
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "t.py").write_text(f"{HEAD}torch.save(x, 'y')")
    code, out, _ = cli("check", "n.ipynb", "pipe.py", "t.py", "--json")
    seen = json.loads(out)
    assert (code, len(seen["findings"]), len(seen["faults"])) == (2, 1, 2)
    assert "a notebook" in seen["faults"][0]["message"]
