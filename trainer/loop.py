"""The training of one rank, from loading to the last step."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainer import agreement, changes, checkpoint, finding, phase, replicas, state
from trainer.config import TrainerConfig
from trainer.contract import OUTCOME_DONE, OUTCOME_DRAINED, ConfigurationError, Contract
from trainer.data import load_corpus
from trainer.evaluation import batches_of, validation_totals
from trainer.metrics import Clock, Metrics, peak_memory_bytes, utilization
from trainer.nonfinite import Fault, Guard, diverged, judge, limit_of
from trainer.optim import build_optimizer, learning_rate, set_learning_rate
from trainer.parallel import parallelize, split
from trainer.peers import Peers
from trainer.probing import probe
from trainer.samples import SampleStream, train_batches
from trainer.saver import Saver
from trainer.staging import Staging
from trainer.stop import StopProtocol
from trainer.token_counts import Divisors, Pair, counted

# Losses are kept on the device until they are reported, and one metrics line holds them all.
MAX_LOSSES = 1000


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
        self.peers = Peers(config.checkpoint.timeout_s)
        probe(contract, self.peers)
        self.corpus = load_corpus(config, contract.workdir)
        self.settings = changes.settings_of(config, self.corpus)
        agreement.agree(agreement.facts_of_run(config, changes.fingerprint(self.corpus.train)))
        state.seed_everything(config.seed)
        self.parallel = parallelize(config, self.corpus.vocab_size, device)
        outline = self.parallel.outline
        self.optimizer = build_optimizer(self.parallel.named, outline.decayed, config.optimizer)
        per_rank = config.batch.micro * config.batch.accumulation
        self.samples_per_step = per_rank * self.parallel.data_world_size
        self.progress = state.Progress()
        self.changes: list[changes.Change] = []
        self.broken: list[checkpoint.BrokenCheckpoint] = []
        self.parallel.settle(self._throw_away_pass)
        self.resumed_from = self._resume()
        self._check_replicas()
        self._batches = self._open_batches()
        self._losses: list[Tensor] = []  # of the steps since the last report, on the device
        self._guard = Guard(self.optimizer)
        self.metrics = Metrics(contract, config.logging.tensorboard, self.progress.step)
        self.clock = Clock()
        self.saver = self._make_saver()

    def run(self) -> str:
        """Train to the last step or to a stop; returns OUTCOME_DONE or OUTCOME_DRAINED."""
        progress, config = self.progress, self.config
        stopping = self._evaluation_due() and not self._evaluate()
        while not stopping and progress.step < config.steps:
            stopping = self.advance()
            self._check_replicas()
            if not stopping and self._evaluation_due():
                stopping = not self._evaluate()
            if stopping or self._checkpoint_due():
                self._save(final=stopping or progress.step == config.steps)
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
        batches, divisors = self._micro_batches()
        for micro, (tokens, targets) in enumerate(batches):
            with self.parallel.gradient_sync(is_last=micro == accumulation - 1):
                loss = self._loss(tokens, targets)
                if divisors is not None:
                    loss = loss / divisors[micro]
                self.parallel.backward(loss)
            losses.append(loss.detach())
        self._losses.append(losses[0] if accumulation == 1 else torch.stack(losses).float().sum())
        progress.step += 1
        self._guard.before_step(self.parallel.clip(config.optimizer.clip_norm))
        rate = learning_rate(progress.step, config.steps, config.optimizer.lr, config.schedule)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        progress.samples += self.samples_per_step

    def _micro_batches(self) -> tuple[Iterable[Pair], Divisors | Sequence[int] | None]:
        """Those of one step, and what to divide the loss of each by; None: by nothing."""
        accumulation, ignored = self.config.batch.accumulation, self.config.data.ignore_token
        fetched = (self._next_batch() for _ in range(accumulation))
        if ignored is None:
            return fetched, [accumulation] * accumulation if accumulation > 1 else None
        return counted(fetched, ignored)

    def _next_batch(self) -> Pair:
        began = perf_counter()
        batch = next(self._batches)
        self.clock.data_s += perf_counter() - began
        return split(batch, self.device)

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss, a scalar, over targets [B, T] that count."""
        with self.parallel.autocast():
            loss: Tensor = self.parallel.model(tokens, targets)
        if loss.dim() > 0:
            raise ConfigurationError(
                f"train.model.factory: the module returned a loss of shape {list(loss.shape)};"
                " it must return the mean loss over the batch, a scalar"
            )
        return loss

    def _throw_away_pass(self) -> None:
        micro = self.config.batch.micro
        batch = self.corpus.train[np.arange(micro) % len(self.corpus.train)]
        torch.autograd.backward(self._loss(*split(batch, self.device)))

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
        every = self.config.checkpoint.every_steps
        return step == self.config.steps or (every is not None and step % every == 0)

    def _report(self) -> None:
        """Write the metrics since the last report; the only collective of an ordinary interval."""
        progress = self.progress
        self.saver.notice()
        num_steps = len(self._losses)
        if num_steps == 0:
            return
        training_s, shares = self.clock.read()
        own_step_s = torch.tensor(training_s / num_steps, device=self.device)
        sums = torch.stack([*self._losses, own_step_s]).float()
        dist.all_reduce(sums)
        *losses, step_s = (sums / self.contract.world_size).tolist()
        self.stop.set_pace(step_s)
        norms = self._guard.read()
        self._judge(losses, norms)
        self._losses.clear()
        tokens_per_s = num_steps * self.samples_per_step * self.config.model.context / training_s
        self.metrics.line(
            progress.step,
            loss=losses[-1],
            losses=losses,
            lr=self.optimizer.param_groups[0]["lr"],
            grad_norm=norms[-1],
            step_s=round(step_s, 6),
            tokens_per_s=round(tokens_per_s, 1),
            mfu=self._utilization(tokens_per_s),
            peak_memory_bytes=peak_memory_bytes(self.device),
            time_shares=shares,
        )

    def _judge(self, losses: Sequence[float], norms: Sequence[float]) -> None:
        """Tell of skipped steps; raise TrainingDiverged, on all ranks, for what is not borne."""
        progress = self.progress
        first = progress.step - len(losses) + 1
        verdict = judge(first, norms, losses, progress.skipped_in_a_row, limit_of(self.config))
        progress.skipped_in_a_row = verdict.in_a_row
        for step in verdict.skipped:
            progress.skipped += 1
            if self.parallel.scaler is None:  # it makes some steps overflow, to find its scale
                self.metrics.event("skipped", step, total=progress.skipped)
        if verdict.fault is not None:
            raise diverged(verdict.fault, self._losses[verdict.fault.step - first].item())

    def _check_replicas(self) -> None:
        every, step = self.config.parallelism.check_replicas_every, self.progress.step
        if every is not None and step % every == 0:
            replicas.check(self.parallel.named, step, self.parallel.shard)

    def _utilization(self, tokens_per_s: float) -> float | None:
        flops_per_token = self.parallel.outline.flops_per_token
        if flops_per_token is None:
            return None
        per_rank = tokens_per_s * flops_per_token / self.contract.world_size
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
            if not math.isfinite(loss):
                raise diverged(Fault(progress.step, "validation loss", loss))
            progress.validation_loss = loss
            per_byte = loss if self.corpus.bytes_are_tokens else None
            self.metrics.event("validation", progress.step, loss=loss, loss_per_byte=per_byte)
        progress.validated_step = progress.step
        return True

    def _validation_totals(self) -> Tensor:
        micro, limit = self.config.batch.micro, self.config.evaluation.batches
        batches = batches_of(self.corpus.validation, self.parallel, micro, limit)
        return validation_totals(self.parallel, batches, self.device, self.stop.requested)

    # Checkpoints.

    def _make_saver(self) -> Saver:
        layout = self.config.checkpoint.format
        stage = Staging(self.parallel, self.optimizer, self.settings, self.peers, layout)
        broken = [error.path for error in self.broken]
        return Saver(self.config, self.contract, self.peers, stage, self.metrics.event, broken)

    def _save(self, final: bool) -> None:
        """Save the state of this step; see Saver.save."""
        self._report()
        began = perf_counter()
        self.saver.save(self.progress, final=final)
        self.clock.checkpoint_s += perf_counter() - began

    def _resume(self) -> str | None:
        """Continue from the newest whole checkpoint; returns its name, or None if there is none."""
        # Dropout differs between ranks, except those that share their samples.
        seed = self.config.seed + 1 + self.parallel.data_rank
        state.seed_everything(seed)
        if self.config.checkpoint.resume == "never":
            return None
        path, self.broken = finding.newest_whole(self.contract.checkpoint_dir, self.peers)
        if path is None:
            return None
        saved = state.load(path)
        self.changes = changes.compare(saved.settings, self.settings)
        changes.refuse(path, self.changes, saved.progress.step, self.config.steps)
        state.restore(saved, self.parallel, self.optimizer, self.device, seed)
        self.progress = saved.progress
        return path.name

    def close(self) -> None:
        """End the loader's workers, close the metrics."""
        self.saver.close()
        self._batches.close()
        self.metrics.close()

    def _open_batches(self) -> Generator[Tensor, None, None]:
        stream = SampleStream(
            num_samples=len(self.corpus.train),
            micro=self.config.batch.micro,
            rank=self.parallel.data_rank,
            world_size=self.parallel.data_world_size,
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
