"""What one pass of a model leaves in memory and computes, seen from outside.

No values are needed: under torch's FakeTensorMode tensors have shapes and storages, but no memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

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


def saved_bytes(
    model: nn.Module,
    units: Mapping[str, nn.Module],
    context: int,
    number_format: AbstractContextManager[object],
) -> Counter[str]:
    """Bytes that a forward pass of one sequence keeps for the backward pass, by unit; ROOT: rest.

    Each storage counts once, where it was first kept; parameters, buffers and autocast's copies of
    parameters don't count.
    """
    inside, seen = _Inside(units), _Narrowed(model)
    kept: Counter[str] = Counter()

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in seen.storages:
            seen.storages.add(storage._cdata)
            kept[inside.name] += storage.nbytes()
        return value  # and so it lives until the loss is dropped, and no other gets its address

    with inside, saved_tensors_hooks(keep, lambda value: value), number_format, seen:
        loss = loss_of(model, context)
    del loss
    return kept


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


class _Narrowed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storages of a model's parameters and buffers, and of what they are cast to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        held = [*model.parameters(), *model.buffers()]
        self._own = {value.untyped_storage()._cdata for value in held}
        self.storages = set(self._own)
        self._copies: list[Tensor] = []  # alive, so that no other storage gets their address

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _ATEN._to_copy.default and args[0].untyped_storage()._cdata in self._own:
            self.storages.add(result.untyped_storage()._cdata)
            self._copies.append(result)
        return result


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
