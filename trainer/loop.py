"""The training of one rank, from loading to the last step."""

from __future__ import annotations

import math
from collections.abc import Generator
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainer import changes, checkpoint, phase, state
from trainer.config import TrainerConfig
from trainer.contract import OUTCOME_DONE, OUTCOME_DRAINED, ConfigurationError, Contract
from trainer.data import load_corpus
from trainer.evaluation import validation_totals
from trainer.metrics import Clock, Metrics, peak_memory_bytes, utilization
from trainer.model import build_model, flops_per_token
from trainer.optim import build_optimizer, learning_rate, set_learning_rate
from trainer.parallel import autocast, gradient_sync, parallelize, settle, split
from trainer.samples import SampleStream, train_batches, validation_batches
from trainer.saving import save
from trainer.stop import StopProtocol

# Losses are kept on the device until they are reported, and one metrics line holds them all.
MAX_LOSSES = 1000


class TrainingDiverged(ConfigurationError):
    """A loss or the gradient norm is no number any more; nothing of it was saved.

    A repetition would come to the same numbers.
    """


def refuse_divergence(step: int, what: str, value: float) -> None:
    """Raise TrainingDiverged if the `what` of `step`, the same on all ranks, is no number."""
    if not math.isfinite(value):
        raise TrainingDiverged(
            "lower train.optimizer.lr, lengthen train.schedule.warmup_steps or look at the data:"
            f" training diverged, the {what} of step {step} is {value}. It was not saved"
        )


class Trainer:
    """One rank's model, data and state.

    Building it loads everything and continues from the newest whole checkpoint; run() trains.
    The process group must be up, and every rank must build its own.
    """

    def __init__(
        self, config: TrainerConfig, contract: Contract, stop: StopProtocol, device: torch.device
    ) -> None:
        self.config, self.contract, self.stop, self.device = config, contract, stop, device
        phase.enter("load", 0)
        self.corpus = load_corpus(config, contract.workdir)
        self.settings = changes.settings_of(config, self.corpus)
        state.seed_everything(config.seed)
        module = build_model(config, self.corpus.vocab_size)
        self.flops_per_token = flops_per_token(module, config.model)
        self.model = parallelize(module, config, device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.model, config.optimizer)
        batch = config.batch
        self.samples_per_step = batch.micro * batch.accumulation * contract.world_size
        self.progress = state.Progress()
        self.changes: list[changes.Change] = []
        self.broken: list[checkpoint.BrokenCheckpoint] = []
        settle(self.model, self._throw_away_pass)
        self.resumed_from = self._resume()
        self._batches = self._open_batches()
        self._losses: list[Tensor] = []  # of the steps since the last report, on the device
        self._grad_norm: Tensor | None = None
        self.metrics = Metrics(contract, config.logging.tensorboard, self.progress.step)
        self.clock = Clock()

    def run(self) -> str:
        """Train to the last step or to a stop; returns OUTCOME_DONE or OUTCOME_DRAINED."""
        progress, config = self.progress, self.config
        stopping = self._evaluation_due() and not self._evaluate()
        while not stopping and progress.step < config.steps:
            stopping = self.advance()
            if not stopping and self._evaluation_due():
                stopping = not self._evaluate()
            if stopping or self._checkpoint_due():
                self._save()
        return OUTCOME_DRAINED if stopping else OUTCOME_DONE

    def advance(self) -> bool:
        """One step with what goes with every step; True if all ranks stop after it."""
        self.stop.before_step(self.progress.step + 1)
        self._train_step()
        if self._report_due():
            self._report()
        return self.stop.after_step(self.progress.step)

    def _train_step(self) -> None:
        config, progress = self.config, self.progress
        phase.enter("step", progress.step)
        accumulation = config.batch.accumulation
        losses: list[Tensor] = []
        self.optimizer.zero_grad()
        for micro in range(accumulation):
            began = perf_counter()
            batch = next(self._batches)
            self.clock.data_s += perf_counter() - began
            with gradient_sync(self.model, is_last_micro_batch=micro == accumulation - 1):
                loss = self._loss(batch)
                if accumulation > 1:
                    loss = loss / accumulation
                torch.autograd.backward(loss)
            losses.append(loss.detach())
        self._losses.append(losses[0] if accumulation == 1 else torch.stack(losses).float().sum())
        progress.step += 1
        clip_norm = config.optimizer.clip_norm
        if clip_norm > 0:
            self._grad_norm = torch.nn.utils.clip_grad_norm_(self.parameters, clip_norm)
        rate = learning_rate(progress.step, config.steps, config.optimizer.lr, config.schedule)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        progress.samples += self.samples_per_step

    def _loss(self, batch: Tensor) -> Tensor:
        """Mean loss, a scalar, of a batch of windows [B, T + 1]."""
        tokens, targets = split(batch, self.device)
        with autocast(self.config, self.device):
            loss: Tensor = self.model(tokens, targets)
        return loss

    def _throw_away_pass(self) -> None:
        micro = self.config.batch.micro
        batch = self.corpus.train[np.arange(micro) % len(self.corpus.train)]
        loss = self._loss(batch)
        if loss.dim() > 0:
            raise ConfigurationError(
                f"train.model.factory: the module returned a loss of shape {list(loss.shape)};"
                " it must return the mean loss over the batch, a scalar"
            )
        torch.autograd.backward(loss)

    # Between steps.

    def _report_due(self) -> bool:
        every = self.config.logging.every
        return self.progress.step % every == 0 or len(self._losses) == MAX_LOSSES

    def _evaluation_due(self) -> bool:
        step, every = self.progress.step, self.config.evaluation.every
        if self.progress.validated_step == step:
            return False
        return step in (0, self.config.steps) or (every is not None and step % every == 0)

    def _checkpoint_due(self) -> bool:
        step = self.progress.step
        return step == self.config.steps or step % self.config.checkpoint.every == 0

    def _report(self) -> None:
        """Write the metrics since the last report; the only collective of an ordinary interval."""
        progress = self.progress
        num_steps = len(self._losses)
        if num_steps == 0:
            return
        training_s, shares = self.clock.read()
        own_step_s = torch.tensor(training_s / num_steps, device=self.device)
        sums = torch.stack([*self._losses, own_step_s]).float()
        dist.all_reduce(sums)
        *losses, step_s = (sums / self.contract.world_size).tolist()
        self.stop.set_pace(step_s)
        norm = self._last_grad_norm()
        for step, loss in enumerate(losses, progress.step - num_steps + 1):
            refuse_divergence(step, "loss", loss)
        refuse_divergence(progress.step, "gradient norm", norm)
        self._losses.clear()
        tokens_per_s = num_steps * self.samples_per_step * self.config.model.context / training_s
        self.metrics.line(
            progress.step,
            loss=losses[-1],
            losses=losses,
            lr=self.optimizer.param_groups[0]["lr"],
            grad_norm=norm,
            step_s=round(step_s, 6),
            tokens_per_s=round(tokens_per_s, 1),
            mfu=self._utilization(tokens_per_s),
            peak_memory_bytes=peak_memory_bytes(self.device),
            time_shares=shares,
        )

    def _last_grad_norm(self) -> float:
        """Norm before clipping; where nothing is clipped it is taken here and not every step."""
        if self._grad_norm is not None:
            return self._grad_norm.item()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients).item()

    def _utilization(self, tokens_per_s: float) -> float | None:
        if self.flops_per_token is None:
            return None
        per_rank = tokens_per_s * self.flops_per_token / self.contract.world_size
        return utilization(per_rank, self.device)

    def _evaluate(self) -> bool:
        """Validate on all ranks; False if a rank has to stop meanwhile, and so all of them do.

        What is given up here is made by the next attempt, before its first step.
        """
        progress = self.progress
        phase.enter("evaluation", progress.step)
        began = perf_counter()
        totals = self._validation_totals()
        dist.all_reduce(totals)
        loss_sum, num_tokens, num_stopping = totals.tolist()
        self.clock.evaluation_s += perf_counter() - began
        if num_stopping:
            return False
        if num_tokens:
            loss = loss_sum / num_tokens
            refuse_divergence(progress.step, "validation loss", loss)
            progress.validation_loss = loss
            per_byte = loss if self.corpus.bytes_are_tokens else None
            self.metrics.event("validation", progress.step, loss=loss, loss_per_byte=per_byte)
        progress.validated_step = progress.step
        return True

    def _validation_totals(self) -> Tensor:
        rank, world_size = self.contract.rank, self.contract.world_size
        micro, limit = self.config.batch.micro, self.config.evaluation.batches
        batches = validation_batches(self.corpus.validation, micro, rank, world_size, limit)
        return validation_totals(
            self.model.module, batches, self.config, self.device, self.stop.requested
        )

    # Checkpoints.

    def _save(self) -> None:
        """Publish the state of this step; rank 0 writes, all ranks give their random states."""
        self._report()
        began = perf_counter()
        phase.enter("save", self.progress.step)
        random_states = state.gather(state.random_state(self.device))
        if random_states is not None:
            content = state.parts(
                self.model.module, self.optimizer, self.progress, self.settings, random_states
            )
            known_broken = [error.path for error in self.broken]
            path = save(content, self.progress, self.config, self.contract, known_broken)
            seconds = round(perf_counter() - began, 3)
            self.metrics.event("checkpoint", self.progress.step, path=path, seconds=seconds)
        self.clock.checkpoint_s += perf_counter() - began

    def _resume(self) -> str | None:
        """Continue from the newest whole checkpoint; returns its name, or None if there is none."""
        seed = self.config.seed + 1 + self.contract.rank  # dropout differs between ranks
        state.seed_everything(seed)
        if self.config.checkpoint.resume == "never":
            return None
        path, self.broken = state.find_newest(self.contract.checkpoint_dir)
        if path is None:
            return None
        saved = state.load(path)
        self.changes = changes.compare(saved.settings, self.settings)
        changes.refuse(path, self.changes, saved.progress.step, self.config.steps)
        state.restore(saved, self.model.module, self.optimizer, self.device, seed)
        self.progress = saved.progress
        return path.name

    def close(self) -> None:
        """End the loader's workers and close the metrics."""
        self._batches.close()
        self.metrics.close()

    def _open_batches(self) -> Generator[Tensor, None, None]:
        stream = SampleStream(
            num_samples=len(self.corpus.train),
            micro=self.config.batch.micro,
            rank=self.contract.rank,
            world_size=self.contract.world_size,
            seed=self.config.seed,
            offset=self.progress.samples,
        )
        return train_batches(
            self.corpus.train,
            stream,
            self.config.data.workers,
            timeout_s=self.config.step_timeout_s,
            pin=self.device.type == "cuda",
        )
