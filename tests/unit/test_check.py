"""The static look at training scripts: each rule finds its mistake, and not what is right."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from check_examples import EXAMPLES, HEAD, HEADS, NO_DEVICE, NO_SEED, ONE_PROCESS
from orchestrator.checking import RULES, check
from orchestrator.checking.models import KNOWN
from orchestrator.errors import FaultsError

ROUND = "for x in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"


def found(text: str, head: str = HEAD) -> list[tuple[str, str]]:
    """Rule and source line of each finding."""
    return [(fault.key, fault.source_line.strip()) for fault in check(head + text, "train.py")]


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_rule_finds_its_mistake_alone_and_not_what_is_right(rule: str) -> None:
    wrong, right = EXAMPLES[rule]
    (line,) = (line.strip() for line in wrong.splitlines() if line.endswith("# <-"))
    assert found(wrong, HEADS.get(rule, HEAD)) == [(rule, line)]
    assert found(right, HEADS.get(rule, HEAD)) == []


BAD = [
    ("no-sampler", "loader = torch.utils.data.DataLoader(data, shuffle=True, sampler=None)"),
    ("no-sampler", "loader = DataLoader(data, shuffle=not args.in_order)"),
    ("gpu-0", "model = model.cuda(0)"),
    ("gpu-0", "device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')"),
    ("gpu-0", "model = DDP(net, device_ids=[0])"),
    ("gpu-0", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'"),
    ("log-on-every-rank", "writer = torch.utils.tensorboard.SummaryWriter('runs')"),
]
BAD_BLOCKS = [
    ("no-sampler", "l = DataLoader(d, shuffle=True)",
     "if args.distributed:\n    l = DataLoader(d, shuffle=True)\n"),
    ("collective-on-one-rank", "dist.barrier()",
     "if not args.distributed or rank % 8 == 0:\n    dist.barrier()\n"),
    ("rank-as-gpu", "model = DDP(net, device_ids=[r])",
     "r = dist.get_rank()\nmodel = DDP(net, device_ids=[r])\n"),
    ("rank-as-gpu", "device = torch.device(f'cuda:{r}')",
     "r = int(os.environ['RANK'])\ndevice = torch.device(f'cuda:{r}')\n"),
    ("collective-on-one-rank", "dist.all_reduce(loss)",
     "def log(loss):\n    if rank != 0:\n        return\n    dist.all_reduce(loss)\n"),
    ("collective-on-one-rank", "evaluate(net)",
     "def evaluate(m):\n    dist.all_reduce(m.loss)\nif rank == 0:\n    evaluate(net)\n"),
    ("collective-on-one-rank", "model = DDP(net)",
     "if rank == 0:\n    model = DDP(net)\n"),
    ("unused-with-checkpointing", "model = DDP(net, find_unused_parameters=True)",
     "net.gradient_checkpointing_enable()\nmodel = DDP(net, find_unused_parameters=True)\n"),
    ("module-prefix", "torch.save({'model': model.state_dict()}, 'm.pt')",
     "model = DDP(net)\nif rank == 0:\n    torch.save({'model': model.state_dict()}, 'm.pt')\n"),
    ("unseeded-split", "a, b = torch.utils.data.random_split(data, [8, 2])",
     "torch.manual_seed(7 + rank)\na, b = torch.utils.data.random_split(data, [8, 2])\n"),
]  # fmt: skip
NEWER_CHECKPOINTING = """
net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
DDP(net, find_unused_parameters=True)
"""
GOOD = [
    "loader = DataLoader(data, batch_size=8)",  # an order that all ranks share: for validation
    "loader = DataLoader(data.shard(rank), shuffle=True)",
    "loader = DataLoader(data, shuffle=sampler is None, sampler=sampler)",
    "loader = DataLoader(data, shuffle=not distributed)",
    "if args.distributed:\n    s = 1\nelse:\n    loader = DataLoader(data, shuffle=True)",
    "if not dist.is_initialized():\n    loader = DataLoader(data, shuffle=True)",
    "if rank == -1:\n    model = torch.nn.DataParallel(net)",
    "if not distributed or (distributed and rank % 8 == 0):\n    torch.save(net, 'm.pt')",
    "if world_size > 1:\n    pass\nelse:\n    torch.save(net, 'm.pt')",
    "sampler = DistributedSampler(data, shuffle=False)\nfor epoch in range(3):\n    pass\n",
    "def save():\n    torch.save(net.state_dict(), 'm.pt')\nif dist.get_rank() == 0:\n    save()",
    "def save():\n    if not is_main_process():\n        return\n    torch.save(net, 'm.pt')",
    "if rank in {-1, 0}:\n    torch.save(net, 'm.pt')",
    "main = args.logs and rank == 0\nif main:\n    torch.save(net, 'm.pt')",
    "gpu_id = local_rank\nif gpu_id == 0 and epoch % 5 == 0:\n    torch.save(net, 'm.pt')",
    "images = torch.load('cache.pt')",
    "torch.save(part, f'optimizer-{rank}.pt')",
    "import io\nmemory = io.BytesIO()\ntorch.save(net, memory)",
    "with main_process_first():\n    data = CIFAR10('data', download=True)",
    "wandb.init(project='demo', group='all')",
    "model = net.cuda()",  # the current device, which is set
    "model = DDP(net)\nwith model.no_sync():\n    model(x)",
    "model = DDP(net)\nwith model.no_sync():\n    step(model).backward()",
    "model = DDP(net)\nmodel = model.module\nmodel.generate(x)",
    "model = DDP(net)\ny = model.generate(x) if not isinstance(model, DDP) else None",
    "model = DDP(net)\nema.load_state_dict(model.state_dict())",
    NEWER_CHECKPOINTING,
    "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
    "if rank == 0:\n    prepare()\n    dist.barrier()\nif rank != 0:\n    dist.barrier()",
    "if rank < 2:\n    dist.all_reduce(x, group=first_two)",
    "if rank < 2:\n    dist.barrier(first_group)",
    "if rank != -1:\n    dist.barrier()",  # whether there are several ranks at all
    "if args.rank >= 0:\n    model = DDP(net)",
    "if 'RANK' in os.environ:\n    dist.barrier()",
    "ddp = int(os.environ.get('RANK', -1)) != -1\nif ddp:\n    dist.barrier()",
    "gpu = rank % torch.cuda.device_count()\ntorch.cuda.set_device(gpu)",
    "for x in batches:\n    if rank == 0:\n        break",  # no training loop
]


@pytest.mark.parametrize(("rule", "line"), BAD)
def test_a_line_that_goes_wrong_is_found(rule: str, line: str) -> None:
    assert found(line) == [(rule, line)]


@pytest.mark.parametrize(("rule", "line", "text"), BAD_BLOCKS, ids=lambda value: value[:30])
def test_a_part_that_goes_wrong_is_found(rule: str, line: str, text: str) -> None:
    assert found(text, NO_SEED if rule == "unseeded-split" else HEAD) == [(rule, line)]


@pytest.mark.parametrize("text", GOOD)
def test_nothing_is_said_of_what_is_right(text: str) -> None:
    assert found(text) == []


def test_shuffles_without_a_seed() -> None:
    assert found("random.shuffle(files)", NO_SEED) == [("unseeded-split", "random.shuffle(files)")]
    assert found("random.shuffle(files)") == []
    assert found("from utils import set_seed\nset_seed(1)\nrandom.shuffle(files)", NO_SEED) == []
    seeded = "torch.utils.data.random_split(d, [8, 2], generator=torch.Generator().manual_seed(1))"
    assert found(seeded, NO_SEED) == []
    assert found("def mixup(x):\n    return x[torch.randperm(len(x))]", NO_SEED) == []


def test_the_current_device_where_none_is_set() -> None:
    assert found("net.cuda()\nx.to('cuda')", NO_DEVICE) == [("gpu-0", "net.cuda()")]


def test_a_script_that_trains_in_one_process_is_looked_at_as_if_several_ran_it() -> None:
    saved = found(f"{ROUND}torch.save(model, 'm.pt')", ONE_PROCESS)
    assert [rule for rule, _ in saved] == ["gradients-apart", "save-on-every-rank"]


@pytest.mark.parametrize("line", ["from accelerate import Accelerator", "r = args.local_rank"])
def test_a_script_that_others_spread_is_left_alone(line: str) -> None:
    assert found(f"{line}\n{ROUND}torch.save(model, 'm.pt')", ONE_PROCESS) == []


def test_a_module_of_a_library_is_left_alone() -> None:
    body = "".join(f"    {line}\n" for line in ROUND.splitlines())
    function = f"def explain(loader, model, optimizer):\n{body}"
    assert found(function, ONE_PROCESS) == []
    assert found(f"{function}explain(1, 2, 3)\n", ONE_PROCESS) != []


def test_a_script_that_does_not_train_is_left_alone() -> None:
    assert check("import torch\ntorch.save(1, 'x')\ntorch.load('x')", "train.py") == []


def test_a_line_can_be_left_out_by_a_comment_and_a_rule_by_its_name() -> None:
    text = f"{HEAD}state = torch.load('model.pt')"
    assert check(f"{text}  # check: ok load-without-map-location", "t.py") == []
    assert check(f"{text}  # check: ok gpu-0, load-without-map-location", "t.py") == []
    assert check(f"{text}  # check: ok gpu-0", "t.py") != []
    assert check(text, "t.py", ["load-without-map-location"]) == []


def test_the_wrapper_has_no_attribute_that_would_be_taken_for_the_models_own() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
    finally:
        dist.destroy_process_group()
    own = {name for name in (*dir(model), *vars(model)) if not name.startswith("_")}
    assert own <= KNOWN


@given(st.text(max_size=200))
def test_any_text_gives_findings_or_a_fault(text: str) -> None:
    try:
        assert {fault.key for fault in check(HEAD + text, "t.py")} <= {r.name for r in RULES}
    except FaultsError as error:
        (fault,) = error.faults
        assert (fault.message[:9], fault.fix) == ("no Python", "mend it first")
