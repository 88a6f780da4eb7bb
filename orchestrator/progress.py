"""What a run's metrics say about how far it is. Pure: lines in, progress out.

The lines are those of `metrics.jsonl` (docs/contract.md). An attempt repeats the steps after
the checkpoint that it resumed from: the newest line of a step counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """State of a run after the lines fed so far."""

    step: int = 0
    steps: int | None = None
    attempt: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    sample: str | None = None

    @property
    def time_left_s(self) -> float | None:
        """Seconds to the last step at the pace of the newest line; None until a pace is known."""
        if self.steps is None or not self.step_s:
            return None
        return (self.steps - self.step) * self.step_s

    def feed(self, line: bytes | str) -> dict[str, Any] | None:
        """Take one line in and return it parsed; None for one that is no metrics line."""
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a killed writer may be cut
            return None
        if not isinstance(entry, dict):
            return None
        handler = _EVENTS.get(str(entry.get("event", "step")))
        if handler is not None:
            handler(self, entry)
        return entry

    def _start(self, entry: dict[str, Any]) -> None:
        self.attempt = entry.get("attempt", self.attempt)
        self.steps = entry.get("steps", self.steps)
        self.step = entry.get("step", self.step)

    def _step(self, entry: dict[str, Any]) -> None:
        self.step = entry.get("step", self.step)
        self.loss = entry.get("loss", self.loss)
        self.tokens_per_s = entry.get("tokens_per_s", self.tokens_per_s)
        self.step_s = entry.get("step_s", self.step_s)

    def _validation(self, entry: dict[str, Any]) -> None:
        self.validations.append(entry)

    def _checkpoint(self, entry: dict[str, Any]) -> None:
        self.checkpoints.append(entry)

    def _sample(self, entry: dict[str, Any]) -> None:
        self.sample = entry.get("text")


_EVENTS = {
    "start": Progress._start,
    "step": Progress._step,
    "validation": Progress._validation,
    "checkpoint": Progress._checkpoint,
    "sample": Progress._sample,
}


def read_progress(lines: Iterable[bytes | str]) -> Progress:
    progress = Progress()
    for line in lines:
        progress.feed(line)
    return progress


def describe_entry(entry: dict[str, Any]) -> str | None:
    """One line for a person about one metrics line; None for one that says nothing new."""
    event = entry.get("event", "step")
    if event == "step":
        return (
            f"step {entry['step']:>6}  loss {entry['loss']:.4f}  lr {entry['lr']:.2e}  "
            f"grad norm {entry['grad_norm']:.2f}  {entry['tokens_per_s']:,.0f} tokens/s"
        )
    if event == "start":
        resumed = entry.get("resumed_from")
        return (
            f"attempt {entry['attempt']}: {entry['world_size']} ranks "
            f"on {entry['num_nodes']} node(s), "
            f"{entry['parameters']:,} parameters, {entry['steps']} steps, "
            + (f"resumed from {resumed}" if resumed else "from the start")
        )
    if event == "validation":
        return f"step {entry['step']:>6}  validation loss {_loss(entry)}"
    if event == "checkpoint":
        return f"step {entry['step']:>6}  checkpoint {entry['path']} in {entry['seconds']:.2f} s"
    return None


def _loss(entry: dict[str, Any]) -> str:
    per_byte = entry.get("loss_per_byte")
    text = f"{entry['loss']:.4f} nats per token"
    return text if per_byte is None else f"{text}, {per_byte:.4f} per byte"


def summary(progress: Progress) -> list[str]:
    """Lines for the end of a run: validation loss before and after, and the sample."""
    lines = []
    if len(progress.validations) > 1:
        first, last = progress.validations[0], progress.validations[-1]
        lines.append(f"validation loss before  {_loss(first)}")
        lines.append(f"validation loss after   {_loss(last)}")
    if progress.sample is not None:
        lines += ["sample:", *("  | " + line for line in progress.sample.splitlines())]
    return lines
