"""What one pass of a model leaves in memory and computes, seen from outside.

No values are needed: under torch's FakeTensorMode tensors have shapes and storages, but no memory.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

from trainer.contract import ConfigurationError

ROOT = ""  # the unit of what is in no other
_ATEN = torch.ops.aten


def loss_of(model: nn.Module, context: int) -> Tensor:
    """The loss of one sequence. Raises ConfigurationError if it is no scalar."""
    tokens = torch.zeros(1, context, dtype=torch.int64)
    loss = model(tokens, tokens)
    if not isinstance(loss, Tensor) or loss.dim() > 0:
        shape = f"of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigurationError(
            f"train.model.factory: the module returned a loss {shape}; it must return the mean loss"
            " over the batch, a scalar"
        )
    return loss


def flops_of(model: nn.Module, context: int) -> int:
    """Floating-point operations of a forward and a backward pass of one sequence.

    Attention is split into its products for it: torch counts none for the CPU's kernel, and for
    others what the backward pass computes again too.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        torch.autograd.backward(loss_of(model, context))
    for parameter in model.parameters():
        parameter.grad = None
    return int(counter.get_total_flops())


class Kept(NamedTuple):
    """Bytes of one pass.

    Args:
        by_unit: what the forward pass keeps for the backward pass; ROOT: outside of all units.
        working: what there is besides at the peak of both, without gradients of parameters.
    """

    by_unit: Mapping[str, int]
    working: int


def kept_by(
    model: nn.Module,
    units: Mapping[str, nn.Module],
    context: int,
    number_format: AbstractContextManager[object],
) -> Kept:
    """What a pass over one sequence holds.

    Each storage counts once, where it was first kept; parameters, buffers and autocast's copies of
    parameters don't count.
    """
    inside, held, live = _Inside(units), _Held(model), _Live(model)
    kept: Counter[str] = Counter()

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in held.storages:
            held.storages.add(storage._cdata)
            kept[inside.name] += storage.nbytes()
        return value  # and so it lives until the loss is dropped, and no other gets its address

    with live, _dropped_gradients(model):
        with inside, saved_tensors_hooks(keep, lambda value: value), number_format, held:
            loss = loss_of(model, context)
        torch.autograd.backward(loss)
    copies_bytes = sum(copy.nbytes for copy in held.copies)
    return Kept(kept, max(0, live.peak_bytes - kept.total() - copies_bytes))


@contextlib.contextmanager
def _dropped_gradients(model: nn.Module) -> Iterator[None]:
    """Have each parameter's gradient dropped at once: they are accounted for by themselves."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(drop) for p in trained]  # type: ignore[no-untyped-call]
    yield
    for hook in hooks:
        hook.remove()


def narrow(model: nn.Module, dtype: torch.dtype) -> None:
    """Give all floating-point parameters a format, as FSDP does for a pass."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


class _Inside:
    """Which unit the forward pass is in, while the block runs."""

    def __init__(self, units: Mapping[str, nn.Module]) -> None:
        self._units, self._stack = units, [ROOT]
        self._hooks: list[Any] = []

    @property
    def name(self) -> str:
        return self._stack[-1]

    def __enter__(self) -> None:
        for name, module in self._units.items():
            self._hooks += [
                module.register_forward_pre_hook(lambda *_, name=name: self._stack.append(name)),
                module.register_forward_hook(self._leave),
            ]

    def _leave(self, *_: object) -> None:
        self._stack.pop()

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


class _Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storages of a model's parameters and buffers, and of what they are cast to.

    copies: what they are cast to, alive, so that no other storage gets their address.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        held = [*model.parameters(), *model.buffers()]
        self._own = {value.untyped_storage()._cdata for value in held}
        self.storages = set(self._own)
        self.copies: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _ATEN._to_copy.default and args[0].untyped_storage()._cdata in self._own:
            self.storages.add(result.untyped_storage()._cdata)
            self.copies.append(result)
        return result


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operations inside the block make beside the model, for as long as it lives.

    Attributes:
        peak_bytes: the most that there was at once.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bytes = self.peak_bytes = 0
        held = [*model.parameters(), *model.buffers()]
        self._known = WeakIdKeyDictionary({value.untyped_storage(): None for value in held})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        if storage not in self._known:
            self._known[storage] = None
            weakref.finalize(storage, self._drop, storage.nbytes())
            self._bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._bytes)

    def _drop(self, size_bytes: int) -> None:
        self._bytes -= size_bytes


@contextlib.contextmanager
def order_of_calls(units: Mapping[str, nn.Module]) -> Iterator[list[str]]:
    """The names of units in the order in which a pass inside the block comes to them."""
    order: list[str] = []

    def called(name: str) -> None:
        if name not in order:
            order.append(name)

    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: called(name))
        for name, module in units.items()
    ]
    yield order
    for hook in hooks:
        hook.remove()
