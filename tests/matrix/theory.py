"""What a rank should hold, and what it should send in a step, by the documents of each strategy.

Nothing here looks at a model that is spread: it starts from names and shapes alone.

Sources: Li et al., "PyTorch Distributed" (2020), section 3.2 (DDP's buckets); Rajbhandari et al.,
"ZeRO" (2020), section 5; Zhao et al., "PyTorch FSDP" (2023), sections 3.2 and 3.3 (units, flat
parameters, accumulation); Shoeybi et al., "Megatron-LM" (2019), section 3 (tensor parallel); and
torch's docs of fully_shard (padding of dimension 0) and FullyShardedDataParallel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cells import MODEL, NUM_RANKS, VOCABULARY, Cell
from runs import CONFIG
from trainer.config import parse_config
from trainer.counting import Collective
from trainer.model import build_hollow
from trainer.tensor_parallel import PLAN

FLOAT = 4  # bytes
FORMATS = {"fp32": 4, "bf16": 2}
FLAT_ALIGNMENT = 16  # bytes: torch/distributed/fsdp/_flat_param.py, _get_aligned_numel

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """Bytes of one rank after a step; the optimizer's are AdamW's moments and step counts."""

    parameters: int
    gradients: int
    optimizer: int


class Groups(NamedTuple):
    """The ranks that a rank works with, itself among them, along each dimension of the mesh."""

    replicas: tuple[int, ...]
    shards: tuple[int, ...]
    tensor: tuple[int, ...]


def groups_of(cell: Cell, rank: int) -> Groups:
    """rank = (replica * shards + shard) * tensor + place, tensor innermost."""
    tensor = int(cell.parallelism.get("tensor", 1))
    shards = int(cell.parallelism.get("shard_group", NUM_RANKS // tensor))
    place, shard = rank % tensor, rank // tensor % shards
    replica = rank // tensor // shards
    return Groups(
        tuple(range(place + shard * tensor, NUM_RANKS, shards * tensor)),
        tuple((replica * shards + s) * tensor + place for s in range(shards)),
        tuple(rank - place + p for p in range(tensor)),
    )


@lru_cache
def shapes() -> dict[str, Shape]:
    """Of all parameters, in the order of the model; the head is the token embedding."""
    config = parse_config({**CONFIG, "model": {**CONFIG["model"], **MODEL}}, "theory")
    model = build_hollow(config, VOCABULARY)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def units(tensor: int = 1) -> list[list[Shape]]:
    """The shapes of each block, and of the rest; split between the ranks of a tensor group."""
    found: dict[str, list[Shape]] = {}
    for name, shape in shapes().items():
        unit = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "rest"
        found.setdefault(unit, []).append(_split(name, shape, tensor))
    return [found[unit] for unit in sorted(found)]


def _split(name: str, shape: Shape, tensor: int) -> Shape:
    module, _, kind = name.partition(".")[2].partition(".")[2].rpartition(".")
    style = PLAN[module].__name__ if module in PLAN and tensor > 1 else ""
    if style == "ColwiseParallel":
        return (shape[0] // tensor, *shape[1:])
    if style == "RowwiseParallel" and kind == "weight":
        return (shape[0], shape[1] // tensor)
    return shape


def buckets(precision: str = "fp32") -> list[int]:
    """Numbers in each of DDP's buckets.

    Gradients come in the reverse order of the parameters, and one that reaches the cap closes its
    bucket. The order of a layer's weight and bias is autograd's own: the bias first, but after the
    weight where autocast has cast both.
    """
    cap = int(CONFIG["parallelism"]["ddp"]["bucket_cap_mb"] * 2**20)
    full, current = [], 0
    for numbers in _arriving(precision):
        current += numbers
        if current * FLOAT >= cap:
            full.append(current)
            current = 0
    return [*full, current] if current else full


def _arriving(precision: str) -> list[int]:
    """Numbers of the gradients, in the order in which the backward pass finishes them."""
    layers: dict[str, list[int]] = {}
    for name, shape in reversed(shapes().items()):
        layers.setdefault(name.rpartition(".")[0], []).append(math.prod(shape))
    narrow = precision != "fp32"
    return [n for layer in layers.values() for n in (reversed(layer) if narrow else layer)]


def row_share(shape: Shape, parts: int, part: int | None = None) -> int:
    """Numbers that fully_shard puts on a rank: equal runs of rows, the last ones short or empty.

    part: None for the padded length, which is the same on all ranks.
    """
    rows = math.ceil(shape[0] / parts)
    own = rows if part is None else max(0, min(rows, shape[0] - part * rows))
    return own * math.prod(shape[1:])


def flat_runs(unit: Iterable[Shape], parts: int, precision: str) -> tuple[int, list[range]]:
    """FSDP1's flat parameter: its padded length, and where in it each parameter lies.

    Each starts at a multiple of FLAT_ALIGNMENT bytes in the format of the computation.
    """
    align = FLAT_ALIGNMENT // FORMATS[precision]
    end, runs = 0, []
    for shape in unit:
        first = math.ceil(end / align) * align
        end = first + math.prod(shape)
        runs.append(range(first, end))
    return math.ceil(end / parts) * parts, runs


def held(cell: Cell, rank: int) -> Held:
    """What a rank holds between steps."""
    groups = groups_of(cell, rank)
    if cell.uses_fsdp1:
        return _held_flat(cell, rank)
    if cell.strategy in ("ddp", "no_shard"):
        numbers = sum(math.prod(shape) for shape in shapes().values())
        return _held(numbers, numbers, numbers, len(shapes()))
    parts, part = len(groups.shards), groups.shards.index(rank)
    split = [shape for unit in units(len(groups.tensor)) for shape in unit]
    padded = sum(row_share(shape, parts) for shape in split)
    return _held(padded, padded, sum(row_share(s, parts, part) for s in split), len(split))


def _held_flat(cell: Cell, rank: int) -> Held:
    """Flat parameters are padded for the ranks of their group, also where each holds them whole."""
    group = groups_of(cell, rank).shards
    ranks = (rank,) if cell.strategy == "no_shard, FSDP1" else group
    total, own = 0, []
    for unit in units():
        length, runs = flat_runs(unit, len(group), cell.precision)
        run = length // len(ranks)
        total += run
        first = ranks.index(rank) * run
        own += [len(range(max(r.start, first), min(r.stop, first + run))) for r in runs]
    return _held(total, total, sum(own), sum(numbers > 0 for numbers in own))


def _held(parameters: int, gradients: int, trained: int, num_states: int) -> Held:
    return Held(FLOAT * parameters, FLOAT * gradients, FLOAT * (2 * trained + num_states))


def collectives(cell: Cell, rank: int) -> Counter[Collective]:
    """What a rank takes part in during one step that is not reported."""
    groups, syncs = groups_of(cell, rank), cell.accumulation if cell.sync == "each" else 1
    everyone = tuple(range(NUM_RANKS))
    norm = Collective("all_reduce", FLOAT, everyone)
    if cell.strategy in ("ddp", "no_shard"):  # sums are whole on each rank, and so is their norm
        return Counter({c: n * syncs for c, n in _sums(buckets(cell.precision), everyone).items()})
    if cell.strategy == "no_shard, FSDP1":
        flat = [flat_runs(unit, NUM_RANKS, cell.precision)[0] for unit in units()]
        return Counter({c: n * syncs for c, n in _sums(flat, everyone).items()}) + Counter([norm])
    found = Counter([norm, *_tensor_sums(cell, groups.tensor)])
    gathers = _gathers(cell)
    for unit, share in enumerate(_shares(cell, groups)):
        found[Collective("all_gather", share * FORMATS[cell.precision], groups.shards)] += gathers[
            unit
        ]
        whole = share * len(groups.shards)
        found[Collective("reduce_scatter", whole * FLOAT, groups.shards)] += syncs
        if len(groups.replicas) > 1:
            found[Collective("all_reduce", share * FLOAT, groups.replicas)] += syncs
    return found


def _sums(numbers: Iterable[int], ranks: tuple[int, ...]) -> Counter[Collective]:
    return Counter(Collective("all_reduce", FLOAT * n, ranks) for n in numbers)


def _shares(cell: Cell, groups: Groups) -> Iterator[int]:
    """Numbers of each unit on a rank, padded."""
    parts = len(groups.shards)
    for unit in units(len(groups.tensor)):
        if cell.uses_fsdp1:
            yield flat_runs(unit, parts, cell.precision)[0] // parts
        else:
            yield sum(row_share(shape, parts) for shape in unit)


def _gathers(cell: Cell) -> list[int]:
    """How often each unit is gathered in a step: blocks first, the rest last.

    For each forward pass; and for the backward pass if it was dropped between, as full sharding
    does with all but the outermost unit. FSDP1's SHARD_GRAD_OP alone keeps it until gradients are
    summed (its no_sync).
    """
    forward = cell.accumulation
    if cell.strategy == "shard_grad_op, FSDP1" and cell.sync == "last":
        forward = 1
    backward = 0 if "shard_grad_op" in cell.strategy else cell.accumulation
    blocks = MODEL["layers"]
    return [forward + backward] * blocks + [forward]


def _tensor_sums(cell: Cell, ranks: tuple[int, ...]) -> list[Collective]:
    """Of activations: after attention and perceptron forward, before them backward."""
    if len(ranks) == 1:
        return []
    numbers = cell.micro * MODEL["context"] * MODEL["width"]
    one = Collective("all_reduce", numbers * FORMATS[cell.precision], ranks)
    return [one] * (4 * MODEL["layers"] * cell.accumulation)
