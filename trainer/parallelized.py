"""A model that is spread over the ranks, as the training loop uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer import full_state
from trainer.config import TrainerConfig
from trainer.mesh import Sizes
from trainer.model import flops_per_token
from trainer.norms import GradientNorm
from trainer.precision import LossScaler, autocast


class Named(NamedTuple):
    """A parameter, and the name that it has in the model that is not spread."""

    name: str
    parameter: nn.Parameter


@dataclass(frozen=True)
class Outline:
    """What is known of the model as it was before it was spread.

    decayed: names of the parameters that weight decay is for: matrices, not biases and norms.
    """

    num_parameters: int
    flops_per_token: float | None
    decayed: frozenset[str]

    @staticmethod
    def of(model: nn.Module, config: TrainerConfig) -> Outline:
        """The outline of a model, on any device."""
        named = list(model.named_parameters())
        return Outline(
            num_parameters=sum(parameter.numel() for _, parameter in named),
            flops_per_token=flops_per_token(model, config.model),
            decayed=frozenset(name for name, parameter in named if parameter.dim() >= 2),
        )


class Parallelized:
    """The base: what the strategies differ in, they override.

    Attributes:
        model: called in training with tokens and targets, int64 [B, T] each.
        module: called in evaluation. It synchronises nothing that ranks could miss, unless
            `in_lockstep`.
        bare: the model as it was built, to be looked at and not called.
        in_lockstep: whether a forward pass waits for the other ranks, so that all of them must
            make the same number.
        shard: the number of the part of each parameter that this rank holds, where parts are plain
            tensors; ranks with the same number are replicas.
        scaler: the factor of the loss under fp16, None otherwise.
        groups: those of its mesh, beside that of all ranks.
    """

    in_lockstep = False
    shard = 0

    def __init__(
        self,
        config: TrainerConfig,
        device: torch.device,
        sizes: Sizes,
        outline: Outline,
        model: nn.Module,
        *,
        module: nn.Module | None = None,
        bare: nn.Module | None = None,
    ) -> None:
        self.config, self.device, self.sizes, self.outline = config, device, sizes, outline
        self.model = model
        self.module = model if module is None else module
        self.bare = self.module if bare is None else bare
        self.named = [Named(clean(name), p) for name, p in self.module.named_parameters()]
        self.trainable = [p for _, p in self.named if p.requires_grad]
        self.scaler = LossScaler(device) if config.parallelism.precision == "fp16" else None
        self.groups: list[dist.ProcessGroup] = []
        self.layout: full_state.Layout = full_state.Described()
        self._gradient = GradientNorm(self.trainable, self._copies())

    @property
    def data_rank(self) -> int:
        """This rank's number among those with samples of their own."""
        return dist.get_rank() // self.sizes.tensor

    @property
    def data_world_size(self) -> int:
        """How many shares the samples of a step have."""
        return self.sizes.num_data_ranks

    def _copies(self) -> Sequence[int] | None:
        """As GradientNorm takes them, for each trainable parameter."""
        return None

    def gradient_sync(self, is_last: bool) -> AbstractContextManager[None]:
        """Around the passes of a micro-batch: whether their gradients are summed over ranks."""
        return contextlib.nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Around a forward pass.

        Narrow parameters alone would make a model of the user's compute its loss in their format.
        """
        of_user = self.config.model.factory is not None
        return autocast(self.config.parallelism.precision if of_user else "fp32", self.device)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of one micro-batch, from a scalar."""
        torch.autograd.backward(loss if self.scaler is None else loss * self.scaler.scale)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient down to max_norm where it is longer (0: never).

        Returns its norm before, a scalar, the same on all ranks. To be called once a step: under
        fp16 it takes the scale out of the gradients and adapts it.
        """
        norm = self._gradient.norm()
        if self.scaler is not None:
            norm = norm / self.scaler.scale
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0) if max_norm > 0 else None
        if self.scaler is not None:
            factor = (1.0 if factor is None else factor) / self.scaler.scale
            self.scaler.update(norm)
        # A rank may hold no part of any trainable parameter.
        if factor is not None and (parts := self._gradient.parts()):
            torch._foreach_mul_(parts, factor)
        return norm

    def settle(self, backward: Callable[[], None]) -> None:
        """Bring the sums over ranks into the order that they keep; see replicated.py.

        backward: runs one forward and backward pass on a real batch.
        """

    def before_evaluation(self) -> None:
        """To be called by all ranks, which take rank 0's buffers, as DDP has it in each pass."""
        if self.in_lockstep:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, 0)

    def after_evaluation(self) -> None:
        """To be called by all ranks."""

    def entries(self) -> dict[str, Any]:
        """What the model's state_dict() has, without copies, and as it is spread."""
        return dict(self.module.state_dict(keep_vars=True))

    def weights(self, keep: bool, into: full_state.Buffers | None = None) -> dict[str, Any]:
        """All weights and buffers by name, whole and on the CPU; a collective.

        keep: whether this rank wants them; the others get an empty dictionary. into: where copies
        go, which the training does not change.
        """
        return full_state.gather_model(self.entries(), self.layout, keep, into)

    def load_weights(self, content: dict[str, Any]) -> None:
        """Put back what weights() returned, on all ranks; ValueError if it does not fit."""
        full_state.load_model(self.entries(), self.layout, content)

    def moments(
        self, optimizer: torch.optim.Optimizer, keep: bool, into: full_state.Buffers | None = None
    ) -> dict[str, Any]:
        """The optimizer's state by name of the parameter; otherwise as weights()."""
        return full_state.gather_optimizer(self.named, optimizer, self.layout, keep, into)

    def load_moments(self, optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> None:
        """Put back what moments() returned; options such as the rate stay those of now."""
        full_state.load_optimizer(self.named, optimizer, self.layout, content)

    def resumed(self, step: int) -> None:
        """Tell that the training goes on after `step` steps."""


def clean(name: str) -> str:
    """The name of a parameter without what FullyShardedDataParallel puts into it."""
    return name.replace("_fsdp_wrapped_module.", "")
