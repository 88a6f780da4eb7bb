"""Checkpoints as they lie on disk: whole folders, checked by hash.

A folder is written under a name that starts with a dot, each file synced, the manifest last. It is
whole if its manifest parses and every file named there has the size and SHA-256 given there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from trainer import phase

MANIFEST = "manifest.json"
VERSION = 1
NAME = re.compile(r"step-(\d{9})-attempt-(\d{5})")
E = TypeVar("E", bound=BaseException)
FORMATS = ("full", "sharded", "both")
READ_BYTES = 1 << 20
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

Files = dict[str, dict[str, Any]]
"""Of each file of a checkpoint, by name: size_bytes and sha256."""


class BrokenCheckpoint(Exception):
    """A checkpoint folder that is not whole; the message says why, `path` is the folder.

    missing: something of it is not there, which another host may still see.
    """

    def __init__(self, path: Path, reason: str, missing: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.missing = missing


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is, as orchestrator/data/manifest.schema.json describes it.

    step: optimizer steps done; validation_loss: nats per token after validation_step steps, both
    None if nothing was measured; format: one of FORMATS.
    """

    step: int
    attempt: int
    world_size: int
    strategy: str
    validation_loss: float | None = None
    validation_step: int | None = None
    version: int = VERSION
    format: str = "full"
    versions: dict[str, str] = field(default_factory=lambda: dict(_versions()))
    files: Files = field(default_factory=dict)


def name_of(step: int, attempt: int) -> str:
    """Name of the folder of the checkpoint after `step` steps in attempt `attempt`."""
    return f"step-{step:09d}-attempt-{attempt:05d}"


def error_behind(error: BaseException, kind: type[E]) -> E | None:
    """The first error of this kind below `error`; torch raises one of its own on top of it."""
    found: E | None = None
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, kind):
            found = below
        below = below.__cause__ or below.__context__
    return found


def sync_folder(path: Path) -> None:
    """Have the system put the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path`, its file sizes checked but no hash.

    Raises BrokenCheckpoint, or OSError where the disk does not say whether it is whole: whoever
    passed over it then would continue from an older state.
    """
    try:
        raw = json.loads((path / MANIFEST).read_bytes())
        manifest = Manifest(**raw)
        sizes = {name: int(file["size_bytes"]) for name, file in raw["files"].items()}
    except (*MISSING, ValueError, TypeError, KeyError, AttributeError) as error:
        missing = isinstance(error, MISSING)
        raise BrokenCheckpoint(path, f"no readable manifest: {error!r}", missing) from error
    if manifest.version != VERSION or name_of(manifest.step, manifest.attempt) != path.name:
        raise BrokenCheckpoint(path, "the manifest belongs to another checkpoint or version")
    if manifest.format not in FORMATS:
        raise BrokenCheckpoint(path, f"the manifest has the format {manifest.format!r}")
    if not sizes:
        raise BrokenCheckpoint(path, "the manifest names no file")
    for name, size in sizes.items():
        found = _stat_of(path, name)
        if Path(name).name != name or not stat.S_ISREG(found.st_mode):
            raise BrokenCheckpoint(path, f"{name} is missing", missing=True)
        if found.st_size != size:
            raise BrokenCheckpoint(path, f"{name} does not have the {size} bytes of its manifest")
    return manifest


def _stat_of(path: Path, name: str) -> os.stat_result:
    """Not by Path.is_file: from Python 3.14 on that takes an error of the disk for no file."""
    try:
        return (path / name).stat()
    except MISSING as error:
        raise BrokenCheckpoint(path, f"{name} is missing", missing=True) from error


def format_of(path: Path) -> str:
    """The format of a checkpoint that is known to be whole: full, sharded or both."""
    return str(json.loads((path / MANIFEST).read_bytes())["format"])


def verify(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path` if it is whole; raises as read_manifest."""
    manifest = read_manifest(path)
    verify_files(path, manifest.files)
    return manifest


def verify_files(path: Path, files: Files) -> None:
    """Read these files of the checkpoint folder `path`; BrokenCheckpoint if one is another."""
    for name, file in files.items():
        phase.beat()
        try:
            found = sha256_of(path / name)
        except MISSING as error:
            raise BrokenCheckpoint(path, f"{name} cannot be read: {error}", True) from error
        if found != file.get("sha256"):
            raise BrokenCheckpoint(path, f"the contents of {name} have changed (SHA-256)")


def published(folder: Path) -> list[Path]:
    """Checkpoint folders in `folder`, whole or not, oldest first (by step, then attempt)."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if NAME.fullmatch(e.name) and e.is_dir()]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint by its name, whole or not; 0 without one."""
    steps = [int(path.name.split("-")[1]) for path in published(folder)]
    return max(steps, default=0)


def load_part(path: Path, name: str, lazily: bool = False) -> Any:
    """One file of a checkpoint, on the CPU; nothing in it is executed.

    lazily: read tensors when they are used, so that a rank reads its own part only. The file must
    stay as it is until then.
    """
    return torch.load(path / name, map_location="cpu", weights_only=True, mmap=lazily)


def describe(path: Path) -> dict[str, Any]:
    """The size_bytes and the sha256 of a file, as the manifest has them."""
    return {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _versions() -> Collection[tuple[str, str]]:
    return (("torch", torch.__version__), ("python", platform.python_version()))
