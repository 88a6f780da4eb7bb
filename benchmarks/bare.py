"""What one would write by hand in bare torch, and what all contestants have in common."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer.config import TrainerConfig
from trainer.data import Corpus
from trainer.model import build_whole
from trainer.optim import build_optimizer
from trainer.samples import SampleStream


class Setting:
    """Model, data and optimizer of one rank, made anew for each contestant."""

    def __init__(self, config: TrainerConfig, corpus: Corpus, rank: int, num_ranks: int) -> None:
        self.config, self.corpus, self.rank, self.num_ranks = config, corpus, rank, num_ranks

    def model(self) -> nn.Module:
        """A new model with the same weights each time."""
        torch.manual_seed(self.config.seed)
        return build_whole(self.config, self.corpus.vocab_size)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The trainer's optimizer over the parameters of `model`."""
        named = list(model.named_parameters())
        matrices = {name for name, parameter in named if parameter.dim() >= 2}
        return build_optimizer(named, matrices, self.config.optimizer)

    def batches(self) -> Iterator[Tensor]:
        """This rank's batches in the trainer's order, int64 [B, T + 1] each, without end."""
        samples, micro = self.corpus.train, self.config.batch.micro
        order = SampleStream(len(samples), micro, self.rank, self.num_ranks, self.config.seed)
        return (samples[numbers] for numbers in order)


class Bare:
    """A loop in bare torch, with DDP or FSDP2."""

    def __init__(self, setting: Setting) -> None:
        module = setting.model()
        if setting.config.parallelism.strategy == "ddp":
            view = setting.config.parallelism.ddp.gradient_as_bucket_view
            self.model: nn.Module = DistributedDataParallel(module, gradient_as_bucket_view=view)
        else:
            for block in module.get_submodule("blocks").children():
                fully_shard(block)
            fully_shard(module)
            self.model = module
        self.parameters = list(self.model.parameters())
        self.optimizer = setting.optimizer(self.model)
        self.clip_norm = setting.config.optimizer.clip_norm
        self.batches = setting.batches()

    def advance(self, steps: int) -> None:
        """Do this many steps."""
        for _ in range(steps):
            batch = next(self.batches)
            self.optimizer.zero_grad()
            self.model(batch[:, :-1], batch[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
            self.optimizer.step()
