"""AdamW with weight-decay groups, and the learning rate as a function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.config import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; matrices decay, vectors (biases, norms) do not."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    beta1, beta2 = config.betas
    return torch.optim.AdamW(groups, config.lr, (beta1, beta2), config.eps, fused=True)


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
