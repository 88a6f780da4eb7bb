"""What the collectives of a step really carry: counted in a few steps, where it is asked for.

A dispatch mode sees each collective with its operator, those that DDP's and FSDP's C++ starts too.
torch's flight recorder sees each that reaches a process group, but not its kind: gloo makes a
reduce-scatter of an all-reduce, and records that. So the mode tells kinds and bytes, and the
recorder how many the mode has missed.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import process_time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import TrainerConfig
from trainer.contract import Contract
from trainer.metrics import Metrics, peak_memory_bytes

FIRST_STEP = 2  # of an attempt, from 1: the first one makes what the others only use
NUM_STEPS = 2

# Each operator by which torch reaches a process group: the kind, and which argument is what the
# rank puts in (torch 2.13, csrc/distributed/c10d/Ops.cpp and Functional.cpp).
OPERATORS: Mapping[str, tuple[str, int]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::allgather_": ("all_gather", 1),
    "c10d::_allgather_base_": ("all_gather", 1),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::broadcast": ("broadcast", 0),
}
WITHOUT_TRAFFIC = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")


class Collective(NamedTuple):
    """size_bytes: what a rank puts in. ranks: those that take part."""

    kind: str
    size_bytes: int
    ranks: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Of the whole tensor that is summed, gathered, scattered or sent."""
        return self.size_bytes * (len(self.ranks) if self.kind == "all_gather" else 1)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives inside the block.

    Attributes:
        seen: how often each was called.
        unseen: how many the flight recorder has besides, once the block has ended; it must have
            been on when the process group was made.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[Collective] = Counter()
        self.unseen = 0

    def __enter__(self) -> Counting:
        self.unseen -= num_recorded() - self.seen.total()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.unseen += num_recorded() - self.seen.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().partition(".")[0]
        if "c10d" in name and name not in WITHOUT_TRAFFIC:
            self._count(name, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        """An operator that the table does not have is for the recorder alone."""
        if name not in OPERATORS:
            return
        kind, index = OPERATORS[name]
        if name.startswith("_c10d_functional"):
            group = _resolve_process_group(args[-1])
        else:
            group = dist.ProcessGroup.unbox(args[index + 1])
        ranks = tuple(dist.get_process_group_ranks(group))
        size_bytes = sum(tensor.nbytes for tensor in _tensors(args[index]))
        self.seen[Collective(kind, size_bytes, ranks)] += 1


def _tensors(argument: Any) -> Iterator[Tensor]:
    """The tensors in an argument that may be a list, or a list of lists, of them."""
    if isinstance(argument, Tensor):
        yield argument
    else:
        for part in argument:
            yield from _tensors(part)


def num_recorded() -> int:
    """Collectives that the flight recorder has had of this process, whoever started them."""
    dump: Callable[..., bytes] = _distributed_c10d._dump_fr_trace  # type: ignore[attr-defined]
    entries = pickle.loads(dump(True, False, False))["entries"]
    return 1 + max((int(entry["record_id"]) for entry in entries), default=-1)


class TrafficCount:
    """Rank 0's count of NUM_STEPS steps of an attempt, and the event `traffic` after them; at the
    end the event `use`.

    With logging.traffic off it does nothing.
    """

    def __init__(
        self, config: TrainerConfig, contract: Contract, metrics: Metrics, step: int
    ) -> None:
        """step: those that were done before this attempt."""
        self._asked = config.logging.traffic
        self._wanted = self._asked and contract.rank == 0
        self._ranks_per_node, self._metrics = config.ranks_per_node, metrics
        first = step + FIRST_STEP
        last = min(first + NUM_STEPS - 1, config.steps)
        self._steps = range(min(first, last), last + 1)  # not empty where one step is left
        self._counting = Counting()
        self._mark = (step, process_time())

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around what makes step number `step`."""
        if step == self._steps[-1] + 1:
            self._mark = (step - 1, process_time())
        if not (self._wanted and step in self._steps):
            yield
            return
        with self._counting:
            yield
        if step == self._steps[-1]:
            self._metrics.event("traffic", step, **self._content())

    def end(self, step: int, device: torch.device) -> None:
        """After `step`, the last one, tell what the ranks used; a collective."""
        if not self._asked:
            return
        done, began_s = self._mark
        cpu_s = (process_time() - began_s) / max(1, step - done)
        most = torch.tensor([peak_memory_bytes(device), cpu_s], dtype=torch.float64, device=device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        peak_bytes, cpu_s = most.tolist()
        self._metrics.event("use", step, peak_bytes=int(peak_bytes), cpu_s=cpu_s)

    def _content(self) -> dict[str, Any]:
        steps = len(self._steps)
        unseen = self._counting.unseen if num_recorded() else None
        found = of_a_step(self._counting.seen, steps, self._ranks_per_node)
        return {"steps": steps, "unseen": unseen, "collectives": found}


def of_a_step(
    seen: Counter[Collective], steps: int, ranks_per_node: int
) -> list[dict[str, str | float]]:
    """Calls and bytes of one step, by kind and shape of the group; means over the steps."""
    calls: Counter[tuple[str, int, int]] = Counter()
    payload_bytes: Counter[tuple[str, int, int]] = Counter()
    for one, times in seen.items():
        shape = (one.kind, len(one.ranks), _most_in_a_node(one.ranks, ranks_per_node))
        calls[shape] += times
        payload_bytes[shape] += times * one.payload_bytes
    return [
        {
            "kind": shape[0], "group_size": shape[1], "ranks_per_node": shape[2],
            "calls": calls[shape] / steps, "payload_bytes": payload_bytes[shape] / steps,
        }
        for shape in sorted(calls)
    ]  # fmt: skip


def _most_in_a_node(ranks: tuple[int, ...], ranks_per_node: int) -> int:
    return max(Counter(rank // ranks_per_node for rank in ranks).values())
