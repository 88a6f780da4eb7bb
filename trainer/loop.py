"""The training of one rank, from loading to the last step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from trainer import agreement, changes, checkpoint, finding, phase, replicas, state, weights
from trainer.config import TrainerConfig
from trainer.contract import OUTCOME_DONE, OUTCOME_DRAINED, ConfigurationError, Contract
from trainer.counting import TrafficCount
from trainer.data import load_corpus
from trainer.due import Due
from trainer.evaluation import batches_of, most_batches, validation_totals
from trainer.feed import Feed
from trainer.grace import Grace
from trainer.ledger import Ledger
from trainer.limits import Limit, Patience
from trainer.metrics import Clock, Metrics
from trainer.network_proof import Proof
from trainer.nonfinite import Fault, Guard, diverged
from trainer.optim import build_optimizer, learning_rate, set_learning_rate
from trainer.parallel import parallelize, split
from trainer.peers import Peers
from trainer.probing import probe
from trainer.reporting import Reporter
from trainer.saver import Saver
from trainer.shared_beats import SharedBeats
from trainer.staging import Staging
from trainer.stop import Agreed, StopProtocol
from trainer.token_counts import Divisors, Pair, counted


class Trainer:
    """One rank's model, data and state.

    Building it loads everything and continues from the newest whole checkpoint; run() trains.
    The process group must be up, and every rank must build its own. All ranks raise Drained
    instead if one is asked to stop meanwhile.
    """

    def __init__(
        self, config: TrainerConfig, contract: Contract, stop: StopProtocol, device: torch.device
    ) -> None:
        self.config, self.contract, self.stop, self.device = config, contract, stop, device
        self.progress = state.Progress()
        phase.enter("load", 0)
        stop.leave_if_asked()
        self.peers = Peers(Limit(config.load_timeout_s, "timeouts.load"))
        probe(contract, self.peers)
        self.corpus = load_corpus(config, contract.workdir)
        self.settings = changes.settings_of(config, self.corpus)
        agreement.agree(agreement.facts_of_run(config, changes.fingerprint(self.corpus.train)))
        stop.leave_if_asked()
        state.seed_everything(config.seed)
        self.parallel = parallelize(config, self.corpus.vocab_size, device)
        outline = self.parallel.outline
        self.optimizer = build_optimizer(self.parallel.named, outline.decayed, config.optimizer)
        per_rank = config.batch.micro * config.batch.accumulation
        self.samples_per_step = per_rank * self.parallel.data_world_size
        self.changes: list[changes.Change] = []
        self.broken: list[checkpoint.BrokenCheckpoint] = []
        stop.leave_if_asked()
        self.parallel.settle(self._throw_away_pass)
        stop.leave_if_asked()
        began = perf_counter()
        self.resumed_from = self._resume()
        if self.resumed_from is None:
            weights.start_from(config.model.init, self.parallel)
        restore_s = perf_counter() - began
        self._check_replicas()
        stop.leave_if_asked(self.progress.step)
        self._batches = Feed(
            config, contract, self.corpus.train, self.parallel, self.progress.samples, device
        )
        self._patience = Patience(config, self.parallel.groups)
        self._guard = Guard(self.optimizer)
        self.metrics = Metrics(contract, config.logging.tensorboard, self.progress.step)
        self._reporter = Reporter(
            config, contract, self.parallel, self._guard, self.metrics, self.samples_per_step
        )
        self.ledger = Ledger(contract, self.progress.step, restore_s)
        self.clock = Clock()
        self._beats = SharedBeats(stop.store)
        self.due = Due(config.checkpoint)
        self.grace = Grace(contract, config.shutdown_timeout_s, self.metrics)
        self.saver = self._make_saver()
        self._proof = Proof(config, contract, self.peers, self.metrics)
        self._traffic = TrafficCount(config, contract, self.metrics, self.progress.step)

    def run(self) -> str:
        """Train to the last step or to a stop; returns OUTCOME_DONE or OUTCOME_DRAINED."""
        progress, config = self.progress, self.config
        phase.first_step = progress.step
        stopping = self._evaluation_due() and not self._evaluate()
        while not stopping and progress.step < config.steps:
            agreed = self.advance()
            self._proof.after_step(self.progress.step)
            stopping = agreed == "stop"
            self._check_replicas()
            if not stopping and self._evaluation_due():
                stopping = not self._evaluate()
            if stopping or agreed == "save" or self._checkpoint_due():
                self._save(final=stopping or progress.step == config.steps)
        return OUTCOME_DRAINED if stopping else OUTCOME_DONE

    def advance(self) -> Agreed | None:
        """One step with what goes with every step; what all ranks do after it."""
        self.wait_for("step")
        save_due = self.contract.rank == 0 and self.due.now()
        self.stop.before_step(self.progress.step + 1, save_due)
        with self._traffic.step(self.progress.step + 1):
            loss = self._train_step()
        self._batches.end_step(self.progress.step)
        if self._reporter.add(loss, self.progress.step) and self._end_interval():
            self._report()
        return self.stop.after_step(self.progress.step)

    def wait_for(self, name: str) -> None:
        """The phase `name` begins: so long may collectives wait for another rank."""
        self._patience.begin(name, self.progress.step)

    def _train_step(self) -> Tensor:
        """One optimizer step; returns its loss, a scalar of this rank's samples."""
        config, progress = self.config, self.progress
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
        progress.step += 1
        self._guard.before_step(self.parallel.clip(config.optimizer.clip_norm))
        rate = learning_rate(progress.step, config.steps, config.optimizer.lr, config.schedule)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        progress.samples += self.samples_per_step
        return losses[0] if accumulation == 1 else torch.stack(losses).float().sum()

    def _micro_batches(self) -> tuple[Iterable[Pair], Divisors | Sequence[int] | None]:
        """Those of one step, and what to divide the loss of each by; None: by nothing."""
        accumulation, ignored = self.config.batch.accumulation, self.config.data.ignore_token
        fetched = (self._next_batch() for _ in range(accumulation))
        if ignored is None:
            return fetched, [accumulation] * accumulation if accumulation > 1 else None
        return counted(fetched, ignored)

    def _next_batch(self) -> Pair:
        began = perf_counter()
        phase.enter("data", self.progress.step)
        batch = next(self._batches)
        phase.enter("step", self.progress.step)
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

    def _evaluation_due(self) -> bool:
        step, every = self.progress.step, self.config.evaluation.every
        if self.progress.validated_step == step:
            return False
        return step in (0, self.config.steps) or (every is not None and step % every == 0)

    def _checkpoint_due(self) -> bool:
        """By the number of steps, which needs no agreement."""
        step, every = self.progress.step, self.config.checkpoint.every_steps
        return step == self.config.steps or (every is not None and step % every == 0)

    def _end_interval(self) -> bool:
        """End an interval of steps, if one is open; whether a report is due."""
        lr = self.optimizer.param_groups[0]["lr"]
        due = self._reporter.end_interval(self.progress.step, self.clock, lr)
        self.ledger.book(self.progress.step, self.clock)
        return due

    def _report(self) -> None:
        """Write the metrics since the last report; the only collective of an ordinary interval."""
        self.saver.notice()
        self._end_interval()
        step_s = self._reporter.report(self.progress)
        if step_s is not None:
            self.stop.set_pace(step_s)

    def _check_replicas(self) -> None:
        every, step = self.config.parallelism.check_replicas_every, self.progress.step
        if every is not None and step % every == 0:
            replicas.check(self.parallel.named, step, self.parallel.shard)

    def _evaluate(self) -> bool:
        """Validate on all ranks; False if a rank has to stop meanwhile, and so all of them do.

        What is given up here is made by the next attempt, before its first step.
        """
        progress = self.progress
        phase.enter("evaluation", progress.step)
        self.wait_for("evaluation")
        # Of no use any more; shard_grad_op would hold whole parameters beside them.
        self.optimizer.zero_grad()
        began = perf_counter()
        loss_sum, num_tokens, num_stopping = self._validation_totals().tolist()
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
        """See evaluation.validation_totals; the sum over all ranks."""
        samples, parallel = self.corpus.validation, self.parallel
        share = self.config.batch.micro, self.config.evaluation.batches
        batches = batches_of(samples, parallel, *share)
        totals = validation_totals(parallel, batches, self.device, self.stop.requested, self._beats)
        self._patience.begin_totals(self.progress.step, most_batches(samples, parallel, *share))
        self._beats.wait(dist.all_reduce(totals, async_op=True))
        return totals

    # Checkpoints.

    def _make_saver(self) -> Saver:
        layout = self.config.checkpoint.format
        stage = Staging(self.parallel, self.optimizer, self.settings, self.peers, layout)
        return Saver(
            self.config, self.contract, self.peers, stage, self.metrics.event,
            [error.path for error in self.broken], self.progress.step,
        )  # fmt: skip

    def _save(self, final: bool) -> None:
        """Save the state of this step; see Saver.save."""
        self._report()  # it waits for the steps that it tells of, and so for as long as they may
        if final:
            self._traffic.end(self.progress.step, self.device)
        phase.enter("save", self.progress.step)
        self.wait_for("save")
        self._batches.sync()
        self.ledger.book(self.progress.step, self.clock, at_once=True)
        began = perf_counter()
        self.saver.save(self.progress, final=final)
        blocked_s = perf_counter() - began
        self.clock.checkpoint_s += blocked_s
        self.due.saved(blocked_s)
        if self.saver.last_s is not None:
            self.grace.saved(self.progress.step, self.saver.last_s, self.stop.step_s)

    def _resume(self) -> str | None:
        """Continue from the newest whole checkpoint; returns its name, or None if there is none."""
        # Dropout differs between ranks, except those that share their samples.
        seed = self.config.seed + 1 + self.parallel.data_rank
        state.seed_everything(seed)
        if self.config.checkpoint.resume == "never":
            return None
        phase.enter("restore", 0)
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
        """End the loader's workers and close the books."""
        self.saver.close()
        self._batches.close()
        self.ledger.close(self.progress.step, self.clock)
        self.metrics.close()
