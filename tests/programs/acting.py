"""A model factory whose model is the built-in one, and that acts in chosen phases.

`act.json` in the working folder says when and what, as a list of
{"attempt": N, "rank": R, "phase": P, "step": S, "act": A}, where P is a phase of the trainer or
"build", in which the model is built, and A is one of
"kill rank", "kill agent" (the rank's parent), "kill node" (the parent of that), "drain";
"hang": sleeps; "stop": stops its process;
"wait": makes the file `waiting` in the attempt's folder and holds the rank until it is drained;
"hold": the same, but until there is a file `release`;
"outlive": the same, but until there is a newer attempt;
"count buckets": writes how many buckets DDP has into the file `buckets` there.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import phase
from trainer.config import ModelConfig
from trainer.model import GPT

ATTEMPT = Path(os.environ["ORCHESTRATE_RUN_DIR"], "attempts", os.environ["ORCHESTRATE_ATTEMPT"])
GIVE_UP_S = 120.0


def build(width: int, context: int, dropout: float = 0.1) -> nn.Module:
    plan = Path("act.json")
    for wanted in json.loads(plan.read_text()) if plan.exists() else []:
        if (wanted["attempt"], wanted["rank"]) == (int(ATTEMPT.name), int(os.environ["RANK"])):
            phase.listeners.append(partial(act_at, wanted))
            act_at(wanted, "build", 0)
    config = ModelConfig(2, 2, width, context, None, dropout, True, None, {}, None)
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
    elif what == "hang":
        time.sleep(2 * GIVE_UP_S)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(2 * GIVE_UP_S)  # continued for its report, it has not gone on by then
    elif what in ("wait", "hold", "outlive"):
        (ATTEMPT / "waiting").touch()
        newer = f"../{int(ATTEMPT.name) + 1}"
        await_file(ATTEMPT / {"wait": "drain", "hold": "release", "outlive": newer}[what])
    elif what == "count buckets":
        (ddp,) = (o for o in gc.get_objects() if isinstance(o, DistributedDataParallel))
        sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[no-untyped-call]
        (ATTEMPT / "buckets").write_text(str(len(sizes.split(","))))


def await_file(path: Path) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
