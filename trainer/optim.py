"""AdamW with weight-decay groups, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.config import OptimizerConfig, ScheduleConfig


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]], decayed: Collection[str], config: OptimizerConfig
) -> torch.optim.AdamW:
    """AdamW over the trainable ones of some parameters; those whose name is in `decayed` decay."""
    groups: dict[tuple[bool, object], list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            # The fused step takes the parameters of one mesh only.
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            groups.setdefault((name in decayed, mesh), []).append(parameter)
    options: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": config.weight_decay if decays else 0.0}
        for (decays, _), parameters in groups.items()
    ]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(options, config.lr, (beta1, beta2), config.eps, fused=True)


def learning_rate(step: int, steps: int, peak: float, schedule: ScheduleConfig) -> float:
    """The rate of optimizer step `step` (from 1) of `steps`.

    It rises linearly to `peak` at warmup_steps, then stays or falls by half a cosine to
    min_lr_ratio * peak at the last step.
    """
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.kind == "constant" or steps == schedule.warmup_steps:
        return peak
    progress = (step - schedule.warmup_steps) / (steps - schedule.warmup_steps)
    low = schedule.min_lr_ratio
    return peak * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
