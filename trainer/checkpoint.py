"""Checkpoints by rank 0: whole folders, checked by hash, published by one rename.

A folder is written under a name that starts with a dot, each file synced, the manifest last. It is
whole if its manifest parses and every file named there has the size and SHA-256 given there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainer import phase
from trainer.contract import Contract, Superseded

MANIFEST = "manifest.json"
VERSION = 1
NAME = re.compile(r"step-(\d{9})-attempt-(\d{5})")
ASIDE_PREFIX = ".tmp-"
ASIDE_NAME = re.compile(re.escape(ASIDE_PREFIX) + NAME.pattern)
READ_BYTES = 1 << 20
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class BrokenCheckpoint(Exception):
    """A checkpoint folder that is not whole; the message says why, `path` is the folder."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CheckpointNotWritten(OSError):
    """The disk refused a checkpoint; the message says where, why and how much space there is."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is, as orchestrator/data/manifest.schema.json describes it.

    step: optimizer steps done; validation_loss: nats per token after validation_step steps, both
    None if nothing was measured; files: for each file name its size_bytes and sha256.
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
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def name_of(step: int, attempt: int) -> str:
    """Name of the folder of the checkpoint after `step` steps in attempt `attempt`."""
    return f"step-{step:09d}-attempt-{attempt:05d}"


def publish(manifest: Manifest, parts: Mapping[str, object], contract: Contract) -> Path:
    """Write `parts` (file name to what torch.save takes) and publish them; returns the folder.

    Raises Superseded if a newer attempt exists, CheckpointNotWritten if the disk refuses; the
    unfinished folder is then removed.
    """
    phase.enter("save", manifest.step)
    name = name_of(manifest.step, manifest.attempt)
    aside = contract.checkpoint_dir / (ASIDE_PREFIX + name)
    final = contract.checkpoint_dir / name
    try:
        contract.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        if aside.exists():
            shutil.rmtree(aside)  # of this attempt and step: a try that failed
        _write_folder(aside, manifest, parts)
        phase.enter("publish", manifest.step)
        _refuse_if_superseded(contract)
        os.rename(aside, final)
    except BaseException as error:
        free = _free_space(contract.run_dir)
        shutil.rmtree(aside, ignore_errors=True)
        refusal = _os_error_behind(error)
        if refusal is None:
            raise
        raise CheckpointNotWritten(
            f"checkpoint {final} could not be written: {refusal.strerror or refusal} ({free})"
        ) from error
    _sync_folder(contract.checkpoint_dir)
    return final


def _os_error_behind(error: BaseException | None) -> OSError | None:
    """The first refusal of the system; torch raises an error of its own on top of it."""
    found = None
    while error is not None:
        if isinstance(error, OSError):
            found = error
        error = error.__cause__ or error.__context__
    return found


def _free_space(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free} bytes are free in {folder}"
    except OSError as error:
        return f"free space of {folder} not known: {error.strerror}"


def _refuse_if_superseded(contract: Contract) -> None:
    if not contract.is_newest_attempt():
        raise Superseded(
            f"attempt {contract.attempt} is superseded: {contract.run_dir / 'attempts'} has a "
            "newer one. This one publishes nothing and ends"
        )


def _write_folder(aside: Path, manifest: Manifest, parts: Mapping[str, object]) -> None:
    aside.mkdir()
    files: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        path = aside / name
        _write_synced(path, partial(torch.save, part))
        files[name] = {"size_bytes": path.stat().st_size, "sha256": _sha256(path)}
    content = json.dumps(asdict(manifest) | {"files": files}, indent=1) + "\n"
    _write_synced(aside / MANIFEST, lambda file: file.write(content.encode()))
    _sync_folder(aside)


def _write_synced(path: Path, write: Callable[[Any], object]) -> None:
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
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
        raise BrokenCheckpoint(path, f"no readable manifest: {error!r}") from error
    if manifest.version != VERSION or name_of(manifest.step, manifest.attempt) != path.name:
        raise BrokenCheckpoint(path, "the manifest belongs to another checkpoint or version")
    if not sizes:
        raise BrokenCheckpoint(path, "the manifest names no file")
    for name, size in sizes.items():
        if Path(name).name != name or not (path / name).is_file():
            raise BrokenCheckpoint(path, f"{name} is missing")
        if (path / name).stat().st_size != size:
            raise BrokenCheckpoint(path, f"{name} does not have the {size} bytes of its manifest")
    return manifest


def verify(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path` if it is whole; raises BrokenCheckpoint."""
    manifest = read_manifest(path)
    for name, file in manifest.files.items():
        phase.beat()
        try:
            found = _sha256(path / name)
        except MISSING as error:
            raise BrokenCheckpoint(path, f"{name} cannot be read: {error}") from error
        if found != file["sha256"]:
            raise BrokenCheckpoint(path, f"the contents of {name} have changed (SHA-256)")
    return manifest


def published(folder: Path) -> list[Path]:
    """Checkpoint folders in `folder`, whole or not, oldest first (by step, then attempt)."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir())


def newest_whole(folder: Path) -> tuple[Path | None, list[BrokenCheckpoint]]:
    """The newest checkpoint that verifies, or None, and what is wrong with those after it."""
    broken: list[BrokenCheckpoint] = []
    for path in reversed(published(folder)):
        try:
            verify(path)
        except BrokenCheckpoint as error:
            broken.append(error)
        else:
            return path, broken
    return None, broken


def prune(
    newest: Path,
    keep: int,
    keep_best: bool,
    attempt: int,
    broken: Collection[Path] = (),
) -> list[Path]:
    """Remove all but the last `keep` whole checkpoints and the best; returns what had to go.

    What cannot be removed stays, with a line on standard error: training is worth more than space.
    `newest` was just published, by `attempt`. What sorts after it stays and does not count, since
    this attempt did not continue from it. `broken` are known not to be whole whatever their sizes
    say. The best has the lowest validation loss. Folders that earlier attempts left unfinished go
    too.
    """
    folder = newest.parent
    order = [path for path in published(folder) if path.name <= newest.name]
    whole = {
        path: manifest
        for path in order
        if path not in broken and (manifest := _manifest_or_none(path)) is not None
    }
    kept = {newest, *list(whole)[-keep:]}
    best = _best(whole)
    if keep_best and best is not None:
        kept.add(best)
    doomed = [path for path in order if path not in kept] + _stale(folder, attempt)
    for path in doomed:
        try:
            shutil.rmtree(path)
        except OSError as error:
            print(f"trainer: old checkpoint stays: {path}: {error}", file=sys.stderr)
    return doomed


def _manifest_or_none(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except BrokenCheckpoint:
        return None


def _best(manifests: Mapping[Path, Manifest]) -> Path | None:
    losses = {p: m.validation_loss for p, m in manifests.items() if m.validation_loss is not None}
    return min(losses, key=lambda path: losses[path]) if losses else None


def _stale(folder: Path, attempt: int) -> list[Path]:
    found = [(path, ASIDE_NAME.fullmatch(path.name)) for path in folder.iterdir()]
    return [path for path, match in found if match and int(match[2]) < attempt]


def load_part(path: Path, name: str, lazily: bool = False) -> Any:
    """One file of a checkpoint, on the CPU; nothing in it is executed.

    lazily: read tensors when they are used, so that a rank reads its own part only. The file must
    stay as it is until then.
    """
    return torch.load(path / name, map_location="cpu", weights_only=True, mmap=lazily)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _versions() -> Collection[tuple[str, str]]:
    return (("torch", torch.__version__), ("python", platform.python_version()))
