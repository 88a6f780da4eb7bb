"""The weights of a checkpoint in one safetensors file, and a model that starts from such a file.

What a model ties is in the file once; its metadata says under which other names it is known.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer import checkpoint
from trainer.agreement import WEIGHTS, agree
from trainer.contract import CHECKPOINTS_DIR, ConfigurationError
from trainer.parallelized import Parallelized
from trainer.state import MODEL_FILE

TIES, STEP, CHECKPOINT = "ties", "step", "checkpoint"  # keys of the file's metadata
KIND = {"format": "pt"}  # a key that transformers asks for: whose tensors these are
MISSING = "the package safetensors is missing: install 'orchestrate-training[trainer]'"
NUM_PROBES, PROBE_BYTES = 64, 4096


class Exported(NamedTuple):
    """What was exported, how many tensors, and their bytes."""

    checkpoint: Path
    num_tensors: int
    size_bytes: int


def export(source: Path, out: Path) -> Exported:
    """Write the weights of a checkpoint to a new safetensors file.

    No process group is needed. The whole model must fit into memory.

    Args:
        source: the folder of a checkpoint, or of a run: then its newest whole checkpoint.
        out: must not be there yet.

    Raises ConfigurationError for what the user can mend, BrokenCheckpoint if the checkpoint is not
    whole, OSError if a file cannot be read or written.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: is there already; give another name, or remove it")
    folder, manifest = _checkpoint_of(source)
    content = weights_of(folder, manifest.format)
    ties = _ties(content)
    tensors = {name: _alone(value) for name, value in content.items() if name not in ties}
    metadata = KIND | {
        STEP: str(manifest.step),
        CHECKPOINT: folder.name,
        TIES: json.dumps(ties, sort_keys=True),
    }
    _write(tensors, metadata, out)
    return Exported(folder, len(tensors), sum(value.nbytes for value in tensors.values()))


def _checkpoint_of(source: Path) -> tuple[Path, checkpoint.Manifest]:
    """The checkpoint that is meant, whole."""
    if not source.is_dir():
        raise ConfigurationError(f"{source}: is no folder (allowed: a checkpoint's or a run's)")
    if checkpoint.NAME.fullmatch(source.resolve().name):
        return source.resolve(), checkpoint.verify(source.resolve())
    broken = ""
    for folder in reversed(checkpoint.published(source / CHECKPOINTS_DIR)):
        try:
            return folder, checkpoint.verify(folder)
        except checkpoint.BrokenCheckpoint as error:
            broken += f"; {error}"
    raise ConfigurationError(f"{source}: holds no whole checkpoint{broken}")


def weights_of(folder: Path, layout: str) -> dict[str, Tensor]:
    """The tensors of a model by name, on the CPU. Of both layouts the full one, which has ties."""
    if layout in ("full", "both"):
        content = checkpoint.load_part(folder, MODEL_FILE, lazily=True)
        return {name: value for name, value in content.items() if isinstance(value, Tensor)}
    from trainer.sharded_state import MODEL
    from trainer.shards import Shards

    shards = Shards(folder)
    names = [name for name in shards.shapes if name.startswith(MODEL)]
    return {name.removeprefix(MODEL): shards.whole(name) for name in names}


def _ties(content: Mapping[str, Tensor]) -> dict[str, str]:
    """Other names of tensors: the name by which each is in the file."""
    first: dict[Any, str] = {}
    ties = {}
    for name, value in content.items():
        place = (value.data_ptr(), value.dtype, value.shape, value.stride())
        own = first.setdefault(place, name) if value.numel() else name
        if own != name:
            ties[name] = own
    return ties


def _alone(value: Tensor) -> Tensor:
    """The tensor in memory of its own, as safetensors wants it."""
    value = value.detach()
    shares = value.untyped_storage().nbytes() != value.nbytes
    return value.clone(memory_format=torch.contiguous_format) if shares else value.contiguous()


def _write(tensors: Mapping[str, Tensor], metadata: dict[str, str], out: Path) -> None:
    """Write aside, sync and rename."""
    package = _safetensors()
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        package.torch.save_file(dict(tensors), aside, metadata)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.rename(out)
    except package.SafetensorError as error:
        raise OSError(f"{out}: could not be written: {error}") from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    return safetensors


def start_from(file: str | None, parallel: Parallelized) -> None:
    """Give the model the weights of a safetensors file, if one is named; a collective.

    The file need not be an export of ours: what the model ties may be in it under any of its
    names. Raises ConfigurationError, on all ranks, if the file is missing, is another one on some
    rank, or does not fit the model.
    """
    if file is None:
        return
    path = Path(file)
    agree({WEIGHTS: _fingerprint(path)})
    content = _with_ties(_read(path), parallel.entries())
    try:
        parallel.load_weights(content)
    except ValueError as error:
        raise ConfigurationError(
            f"train.model.init: {file} does not fit the model: {error}"
        ) from None


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors by all of their names."""
    package = _safetensors()
    try:
        with package.safe_open(path, "pt") as opened:
            ties = _ties_in(opened.metadata() or {})
        content: dict[str, Tensor] = package.torch.load_file(path)
    except (OSError, package.SafetensorError) as error:
        raise ConfigurationError(f"train.model.init: {path}: {error}") from error
    return content | {name: content[own] for name, own in ties.items() if own in content}


def _ties_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """What _ties made, of a file of ours; of another's, whatever it calls so is not known."""
    try:
        ties = json.loads(metadata.get(TIES, "{}"))
    except ValueError:
        return {}
    return ties if isinstance(ties, dict) else {}


def _with_ties(content: dict[str, Tensor], entries: Mapping[str, Any]) -> dict[str, Tensor]:
    """`content` with what the model ties under all of its names."""
    known = {id(entries[name]): value for name, value in content.items() if name in entries}
    missing = [name for name in entries if name not in content and id(entries[name]) in known]
    return content | {name: known[id(entries[name])] for name in missing}


def _fingerprint(path: Path) -> list[str]:
    """What tells one file from another without reading all of it: its size and parts of it."""
    try:
        size_bytes = path.stat().st_size
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for probe in range(NUM_PROBES + 1):
                file.seek(max(0, size_bytes - PROBE_BYTES) * probe // NUM_PROBES)
                digest.update(file.read(PROBE_BYTES))
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return [f"{size_bytes} bytes, sha256 {digest.hexdigest()[:16]} of {NUM_PROBES + 1} parts"]
