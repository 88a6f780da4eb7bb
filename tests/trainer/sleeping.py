"""A rank that sleeps in a chosen phase, so that each time limit is exceeded once."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from hanging import LONG_S, NodeSide, note_pid

from runs import Run, configuration

RANKS = 3
SHORT_S = 4.0
AMPLE_S = 90.0
ENDING_S = 10.0  # from the end of the limit until nothing of the attempt is left
LIMITS = ("rendezvous_timeout_s", "load_timeout_s", "first_step_timeout_s", "step_timeout_s",
          "evaluation_timeout_s", "checkpoint__timeout_s")  # fmt: skip


@dataclass(frozen=True)
class Sleep:
    """Rank `rank` sleeps in `phase` after `step` steps.

    limit: the key of trainer.json that ends it after limit_s. names: the key of the job file that
    is named. also: other limits that are shorter.
    """

    limit: str
    names: str
    phase: str
    step: int
    rank: int
    limit_s: float = SHORT_S
    also: dict[str, float] = field(default_factory=dict)

    def config(self, *, short: bool) -> dict[str, Any]:
        """trainer.json; short: with the limit that ends the sleep."""
        limits = dict.fromkeys(LIMITS, AMPLE_S)
        if short:
            limits |= {self.limit: self.limit_s, **self.also}
        return configuration(
            num_ranks=RANKS, steps=6, evaluation__every=3, checkpoint__every_steps=2, **limits
        )

    def listen(self, run: Run, name: str, step: int) -> None:
        """The listener that sleeps; it notes when it began to."""
        note_pid(run, name, step)
        if (name, step, os.environ["RANK"]) == (self.phase, self.step, str(self.rank)):
            (run.root / "slept-from").write_text(str(time.time()))
            time.sleep(LONG_S)

    def fire(self, run: Run) -> float:
        """Let the limit end attempt 1; seconds from the sleep's begin until all ranks are gone."""
        helper = NodeSide(run, RANKS)
        helper.start()
        ended = run.start(self.config(short=True), listener=self.listen)
        lasted_s = time.time() - float((run.root / "slept-from").read_text())
        helper.join()
        assert {end.exit_code for end in ended} <= {1, -9}
        return lasted_s


SLEEPS = {
    "rendezvous": Sleep("rendezvous_timeout_s", "timeouts.rendezvous", "start", 0, 1),
    "load": Sleep("load_timeout_s", "timeouts.load", "load", 0, 1),
    "load, the checkpoint": Sleep("load_timeout_s", "timeouts.load", "restore", 0, 2),
    "first step": Sleep("first_step_timeout_s", "timeouts.first_step", "step", 0, 1),
    "step": Sleep("step_timeout_s", "timeouts.step", "step", 3, 2),
    "step, waiting for data": Sleep("step_timeout_s", "timeouts.step", "data", 3, 0),
    "evaluation": Sleep("evaluation_timeout_s", "timeouts.evaluation", "evaluation", 3, 1),
    "checkpoint": Sleep("checkpoint__timeout_s", "timeouts.checkpoint", "publish", 4, 0),
    "end": Sleep("step_timeout_s", "timeouts.step", "exit", 6, 0, 10, {"checkpoint__timeout_s": 6}),
}
