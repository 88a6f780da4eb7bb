"""Whether the folder of the checkpoints can be written, and is the same on all nodes."""

from __future__ import annotations

import errno
import math
import time
import uuid
from pathlib import Path

from trainer.contract import ConfigurationError, Contract
from trainer.peers import Peers, some
from trainer.pruning import remove_unfinished
from trainer.writing import ASIDE_PREFIX, CheckpointNotWritten, free_space, write_synced

PROBE_PREFIX = f"{ASIDE_PREFIX}probe-"
VISIBLE_WITHIN_S = 30.0
LOOK_EVERY_S = 0.1

# The same at every start: nothing helps but that somebody changes the folder.
LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP}


def probe(contract: Contract, peers: Peers) -> None:
    """Make the folder of the checkpoints; see that rank 0 can write there, and all ranks see it.

    A collective. Raises on all ranks: ConfigurationError where rank 0 may not write or others do
    not see what it writes, CheckpointNotWritten where the disk fails.
    """
    folder = contract.checkpoint_dir
    path = folder / f"{PROBE_PREFIX}attempt-{contract.attempt:05d}"
    token = uuid.uuid4().hex
    fault = _write(path, token, str(peers.me), contract.attempt) if peers.first else None
    token, written, fault = peers.exchange(
        (token, f"{folder} on {peers.me.host}", fault), f"probe of {folder}"
    )[0]
    if fault is not None:
        raise fault
    within_s = peers.patience_s(VISIBLE_WITHIN_S)
    blind = "" if _sees(path, token, within_s) else f"{peers.me} ({folder})"
    told = peers.exchange(blind, f"probe of {folder}")
    if peers.first:
        path.unlink(missing_ok=True)
    if any(told):
        raise ConfigurationError(
            "the run folder must lie on a file system that all nodes share: what rank 0 writes to"
            f" {written} is not seen within {within_s:g} s by {some(filter(None, told))}"
        )


def _write(path: Path, token: str, who: str, attempt: int) -> Exception | None:
    """Write the token there; returns what all ranks raise if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent, attempt)
        write_synced(path, lambda file: file.write(token.encode()), math.inf)
    except OSError as error:
        said = f"{who}: {error.filename or path}: {error.strerror or error}"
        if error.errno in LASTING:
            return ConfigurationError(
                f"checkpoints cannot be written to {path.parent}: {said}. Give the run a folder"
                " where this user may write"
            )
        free = free_space(path.parent)
        return CheckpointNotWritten(f"no checkpoint can be written: {said} ({free})")
    return None


def _sees(path: Path, token: str, within_s: float) -> bool:
    """Whether this rank reads the token there; it waits for caches."""
    deadline = time.monotonic() + within_s
    while not _reads(path, token):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _reads(path: Path, token: str) -> bool:
    try:
        return path.read_text() == token
    except OSError:  # whatever the reason is, it is not seen
        return False
