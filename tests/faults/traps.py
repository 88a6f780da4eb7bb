"""kill -9 of a rank by itself, at an exact place: what a listener of phases does in each rank.

A place is a phase, or a point inside one:
finding: while the ranks look for the newest checkpoint;
collective: in the backward pass, behind the gradients of the last block and before the first's;
gathering: at the first collective of a save; planning: in the collectives of a sharded save by
which the ranks agree on who writes what; writing: when the first file of a checkpoint is written
but not synced; done: between the DONE marker and the outcome.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from plan import EVERY, Kill
from running import wait_until
from runs import Run
from trainer import checkpoint, shards
from trainer.contract import Contract
from trainer.model import GPT

GIVE_UP_S = 30.0
# How ranks give each other Python's objects; torch.distributed.checkpoint uses them too.
OBJECT_COLLECTIVES = (
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"
)  # fmt: skip
Action = Callable[..., NoReturn]


class Trap:
    """A listener for Run.start that makes one kill, and tells of it in the attempt's folder."""

    def __init__(self, kill: Kill, attempt: int) -> None:
        self.kill = kill
        self.attempt = attempt
        self._is_set = True

    def __call__(self, run: Run, name: str, step: int) -> None:
        kill = self.kill
        phase, arm = PLACES.get(kill.place, (kill.place, at_once))
        if self._is_set and (str(kill.rank), phase, kill.step) == (os.environ["RANK"], name, step):
            self._is_set = False
            arm(lambda *_args, **_options: self.spring(run))

    def spring(self, run: Run) -> NoReturn:
        """Die, once the checkpoint before is published: until then a kill repeats more steps."""
        wait_for_checkpoint(run, (self.kill.step - 1) // EVERY * EVERY)
        told = {"place": self.kill.place, "time": time.time()}
        mark_of(run, self.attempt).write_text(json.dumps(told))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


def mark_of(run: Run, attempt: int) -> Path:
    """The file in which a rank says that it kills itself now."""
    return run.attempt_dir(attempt) / "killed"


def wait_for_checkpoint(run: Run, step: int) -> None:
    """Return when a checkpoint of `step` or later is published; AssertionError if none comes."""
    wait_until(lambda: step <= 0 or _published(run, step), f"checkpoint of {step}", GIVE_UP_S)


def _published(run: Run, step: int) -> bool:
    return any(path.name >= checkpoint.name_of(step, 0) for path in published(run))


def published(run: Run) -> list[Path]:
    """The checkpoints of a run, oldest first, whole or not."""
    return checkpoint.published(run.checkpoint_dir)


# How a trap is armed once its phase has begun.


def at_once(die: Action) -> None:
    die()


def in_backward(die: Action) -> None:
    # By type(): to ask some of torch's objects for their class is deprecated.
    (model,) = (item for item in gc.get_objects() if issubclass(type(item), GPT))
    model.blocks[0].register_full_backward_hook(die)


def in_gathering(die: Action) -> None:
    for name in OBJECT_COLLECTIVES:
        setattr(dist, name, die)


def in_planning(die: Action) -> None:
    write = shards.write_shards

    def armed(*args: Any) -> Any:
        in_gathering(die)
        return write(*args)

    setattr(shards, "write_shards", armed)  # noqa: B010


def in_writing(die: Action) -> None:
    os.fsync = die


def before_outcome(die: Action) -> None:
    setattr(Contract, "write_outcome", die)  # noqa: B010  # mypy allows no assignment


PLACES: dict[str, tuple[str, Callable[[Action], Any]]] = {
    "collective": ("step", in_backward),
    "finding": ("restore", in_gathering),
    "gathering": ("save", in_gathering),
    "planning": ("save", in_planning),
    "writing": ("save", in_writing),
    "done": ("exit", before_outcome),
}
