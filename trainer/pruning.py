"""Which checkpoints go once a newer one is on disk."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from trainer.checkpoint import BrokenCheckpoint, Manifest, published, read_manifest
from trainer.writing import ASIDE_PREFIX

LEFT = re.compile(rf"{re.escape(ASIDE_PREFIX)}(step-\d{{9}}-|probe-)attempt-(\d{{5}})")


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
    say. The best has the lowest validation loss. What earlier attempts left unfinished goes too.
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
    _remove(doomed)
    return doomed


def remove_unfinished(folder: Path, attempt: int) -> None:
    """Remove what attempts before `attempt` left unfinished: it may hold the space that the next
    checkpoint needs."""
    _remove(_stale(folder, attempt))


def _remove(doomed: Sequence[Path]) -> None:
    for path in doomed:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            print(f"trainer: old checkpoint stays: {path}: {error}", file=sys.stderr)


def _manifest_or_none(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except BrokenCheckpoint:
        return None


def _best(manifests: Mapping[Path, Manifest]) -> Path | None:
    losses = {p: m.validation_loss for p, m in manifests.items() if m.validation_loss is not None}
    return min(losses, key=lambda path: losses[path]) if losses else None


def _stale(folder: Path, attempt: int) -> list[Path]:
    found = [(path, LEFT.fullmatch(path.name)) for path in folder.iterdir()]
    return [path for path, match in found if match and int(match[2]) < attempt]
