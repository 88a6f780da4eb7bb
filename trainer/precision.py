"""Number formats: of the computation, of the sums over ranks, and the scale that fp16 needs."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Format

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Those of torch.amp.GradScaler, whose own class asks the host at each step and, under sharding,
# all ranks, for what the gradient norm tells without asking anew.
FIRST_SCALE = 2.0**16
GROWTH, BACKOFF = 2.0, 0.5
GROWTH_INTERVAL = 2000  # steps without overflow until the scale grows


def autocast(precision: Format, device: torch.device) -> AbstractContextManager[object]:
    """The computation in a narrower format where that is safe; nothing with fp32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


def cast_buffers(model: nn.Module, format: Format | None) -> None:
    """Give all floating-point buffers a format, once; None leaves them as they are."""
    if format is None:
        return
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.to(DTYPES[format]))


class LossScaler:
    """The factor by which the loss is multiplied so that small fp16 gradients don't become zero.

    It halves when a gradient overflowed, and doubles after many steps in which none did. All of
    it stays on the device, and is the same on all ranks, since the gradient norm is.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.tensor(FIRST_SCALE, device=device)
        self._streak = torch.zeros((), dtype=torch.int64, device=device)  # steps without overflow

    def update(self, norm: Tensor) -> None:
        """norm: of the step's gradient; no number if one of its values overflowed."""
        good = norm.isfinite()
        self._streak = (self._streak + 1) * good
        grown = self._streak == GROWTH_INTERVAL
        factor = torch.where(good, torch.where(grown, GROWTH, 1.0), BACKOFF)
        self.scale = self.scale * factor
        self._streak = self._streak * ~grown

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"scale": self.scale.item(), "streak": self._streak.item()}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what state() returned."""
        self.scale.fill_(state["scale"])
        self._streak.fill_(state["streak"])
