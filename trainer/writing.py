"""How the folder of a checkpoint comes to be on disk: written aside, published by one rename."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, Any

import torch

from trainer import checkpoint
from trainer.checkpoint import Files, Manifest
from trainer.contract import Contract, Superseded

ASIDE_PREFIX = ".tmp-"


class CheckpointNotWritten(OSError):
    """A checkpoint could not be written; the message says who failed, where and why."""


class PartNotWritten(OSError):
    """The same on all ranks: the disk refused some their part. The message says whom and why."""


class TookTooLong(RuntimeError):
    """A checkpoint was not written within timeouts.checkpoint."""


@dataclass(frozen=True)
class Draft:
    """A checkpoint on its way: `aside` while it is written, `final` once it is published.

    deadline: of time.monotonic(), in seconds; what is written later raises TookTooLong.
    """

    aside: Path
    final: Path
    deadline: float

    @classmethod
    def of(cls, contract: Contract, step: int, deadline: float) -> Draft:
        """The draft of the checkpoint after `step` steps; nothing is on disk yet."""
        name = checkpoint.name_of(step, contract.attempt)
        folder = contract.checkpoint_dir
        return cls(folder / (ASIDE_PREFIX + name), folder / name, deadline)

    def begin(self) -> bool:
        """Make the folder; False if a checkpoint of this name is published, which then stays.

        Raises OSError, and BrokenCheckpoint if what is published is not whole.
        """
        if self.final.exists():
            checkpoint.read_manifest(self.final)
            return False
        if self.aside.exists():
            shutil.rmtree(self.aside)  # of this attempt and step: a try that failed
        # Not its parents: where the checkpoints' folder has gone, another disk lies below it.
        self.aside.mkdir()
        return True

    def write(self, parts: Mapping[str, object]) -> Files:
        """Write `parts` (file name to what torch.save takes), synced; returns size and SHA-256."""
        return {
            name: write_synced(self.aside / name, partial(torch.save, part), self.deadline)
            for name, part in parts.items()
        }

    def publish(self, manifest: Manifest, files: Files, contract: Contract) -> None:
        """Add the manifest of `files`, which are all on disk, and give the folder its name.

        Raises OSError, or Superseded if a newer attempt exists.
        """
        content = json.dumps(asdict(replace(manifest, files=files)), indent=1) + "\n"
        path = self.aside / checkpoint.MANIFEST
        write_synced(path, lambda file: file.write(content.encode()), self.deadline)
        checkpoint.sync_folder(self.aside)
        refuse_if_superseded(contract)
        os.rename(self.aside, self.final)
        checkpoint.sync_folder(self.final.parent)

    def discard(self) -> None:
        """Remove what has been written."""
        shutil.rmtree(self.aside, ignore_errors=True)


class _HashedFile:
    """A file that is hashed while it is written, so that it need not be read again."""

    def __init__(self, file: IO[bytes], deadline: float) -> None:
        self._file, self._deadline = file, deadline
        self._digest, self._size_bytes = hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        if monotonic() > self._deadline:
            raise TookTooLong(f"{self._file.name}: the time of timeouts.checkpoint is over")
        self._digest.update(data)
        self._size_bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def facts(self) -> dict[str, Any]:
        return {"size_bytes": self._size_bytes, "sha256": self._digest.hexdigest()}


def write_synced(path: Path, write: Callable[[Any], object], deadline: float) -> dict[str, Any]:
    """Have write(file) fill a new file and sync it to the disk; returns size_bytes and sha256."""
    with path.open("wb") as file:
        hashed = _HashedFile(file, deadline)
        write(hashed)
        file.flush()
        os.fsync(file.fileno())
    return hashed.facts()


def refuse_if_superseded(contract: Contract) -> None:
    """Raise Superseded if a newer attempt exists."""
    if not contract.is_newest_attempt():
        raise Superseded(
            f"attempt {contract.attempt} is superseded: {contract.run_dir / 'attempts'} has a "
            "newer one. This one publishes nothing and ends"
        )


def free_space(folder: Path) -> str:
    """How much space is free on the disk of `folder`, or of what is left of its path, in words."""
    try:
        nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        return f"{shutil.disk_usage(nearest).free} bytes are free in {nearest}"
    except OSError as error:
        return f"free space of {folder} not known: {error.strerror}"
