"""One gradient norm for the whole model, however its gradients lie on the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local(value: Tensor) -> Tensor:
    """What this rank holds of a tensor: its own memory, not a copy."""
    part: Tensor = value.to_local() if isinstance(value, DTensor) else value
    return part


class GradientNorm:
    """The norm of the gradients of some parameters, the same on all ranks.

    copies: for each parameter, how many ranks hold the same part of its gradient: each of them adds
    as much less to the sum over all ranks, so that nothing counts twice. None: every rank holds
    all gradients, summed over ranks already, and no rank has to be asked.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], copies: Sequence[int] | None) -> None:
        self._parameters = parameters
        self._groups: dict[int, list[nn.Parameter]] = {}
        for parameter, number in zip(parameters, copies or (), strict=copies is not None):
            self._groups.setdefault(number, []).append(parameter)

    @torch.no_grad()
    def parts(self) -> list[Tensor]:
        """What this rank holds of the gradients; parameters without one are left out."""
        return _gradients(self._parameters)

    @torch.no_grad()
    def norm(self) -> Tensor:
        """A scalar; a collective over all ranks where gradients are spread."""
        if not self._groups:
            return torch.nn.utils.get_total_norm(_gradients(self._parameters))
        device = local(self._parameters[0]).device
        square = torch.zeros((), device=device)
        for copies, parameters in self._groups.items():
            gradients = _gradients(parameters)
            if gradients:
                square += torch.nn.utils.get_total_norm(gradients).square() / copies
        dist.all_reduce(square)
        return square.sqrt()


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [local(p.grad) for p in parameters if p.grad is not None]
