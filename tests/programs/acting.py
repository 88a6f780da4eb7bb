"""A model factory whose model is the built-in one, and that acts once in a chosen phase.

`act.json` in the working folder says when and what: {"rank": R, "phase": P, "step": S, "act": A},
where A is "kill rank", "kill agent", "kill node", "drain" or "wait".
It acts in attempt 1 only; "wait" makes the file `waiting` and holds the rank until it is drained.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from torch import nn

from trainer import phase
from trainer.config import ModelConfig
from trainer.model import GPT

ATTEMPT = Path(os.environ["ORCHESTRATE_RUN_DIR"], "attempts", os.environ["ORCHESTRATE_ATTEMPT"])
GIVE_UP_S = 120.0


def build(width: int, context: int) -> nn.Module:
    plan = Path("act.json")
    if plan.exists() and ATTEMPT.name == "1":
        wanted = json.loads(plan.read_text())
        if wanted["rank"] == int(os.environ["RANK"]):
            phase.listeners.append(lambda name, step: act_at(wanted, name, step))
    config = ModelConfig(2, 2, width, context, None, 0.1, True, None, {})
    return GPT(config, vocab_size=256)


def act_at(wanted: dict[str, object], name: str, step: int) -> None:
    if (name, step) == (wanted["phase"], wanted["step"]):
        act(str(wanted["act"]))


def act(what: str) -> None:
    agent = os.getppid()
    if what == "kill rank":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "kill agent":
        os.kill(agent, signal.SIGKILL)
    elif what == "kill node":
        os.kill(parent(agent), signal.SIGKILL)
    elif what == "drain":
        (ATTEMPT / "drain").touch()
    elif what == "wait":
        Path("waiting").touch()
        deadline = time.monotonic() + GIVE_UP_S
        while not (ATTEMPT / "drain").exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
