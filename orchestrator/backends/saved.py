"""The checkpoints in a run folder, here or elsewhere: listed, hashed where they lie, removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.backends.runstore import FileFacts, RunStore
from orchestrator.checkpoints import MANIFEST, NAME, Checkpoint, judged, to_remove
from orchestrator.contract import CHECKPOINTS_DIR
from orchestrator.errors import BackendError, UserError

MANIFEST_LIMIT_BYTES = 16 * 1024 * 1024


def list_saved(store: RunStore) -> list[Checkpoint]:
    """All checkpoint folders of a run, oldest first, judged by manifests and sizes.

    Raises BackendError or OSError if one cannot be looked at: that is not the same as broken.
    """
    folders: dict[str, dict[str, FileFacts]] = {}
    for path, facts in store.files(CHECKPOINTS_DIR).items():
        folder, _, name = path.partition("/")
        if name and NAME.fullmatch(folder):
            folders.setdefault(folder, {})[name] = facts
    names = sorted(folders)
    manifests = store.ends([_path(name, MANIFEST) for name in names], MANIFEST_LIMIT_BYTES)
    return [
        _judged(name, manifest, folders[name])
        for name, manifest in zip(names, manifests, strict=True)
    ]


def _judged(name: str, manifest: bytes, files: dict[str, FileFacts]) -> Checkpoint:
    own = files.get(MANIFEST)
    if own is not None and own.size_bytes > 0 and not manifest:
        raise BackendError(f"{_path(name, MANIFEST)}: cannot be read")
    modified = own.modified if own else max(facts.modified for facts in files.values())
    sizes = {file: facts.size_bytes for file, facts in files.items()}
    return judged(name, manifest, sizes, modified)


def verified(store: RunStore, checkpoint: Checkpoint) -> Checkpoint | None:
    """The checkpoint after a look at all hashes; None if it has been removed meanwhile."""
    if checkpoint.fault or checkpoint.is_verified:
        return checkpoint
    names = list(checkpoint.hashes)
    try:
        found = store.sha256([_path(checkpoint.name, name) for name in names])
    except (BackendError, OSError) as error:
        if checkpoint.name not in store.list(CHECKPOINTS_DIR):
            return None  # by the run itself, which goes on
        return replace(checkpoint, fault=f"cannot be read: {error}")
    return checkpoint.verified(dict(zip(names, found, strict=True)))


def all_verified(store: RunStore, found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints after a look at all hashes."""
    looked = (verified(store, checkpoint) for checkpoint in found)
    return [checkpoint for checkpoint in looked if checkpoint is not None]


def newest_verified(store: RunStore, found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints after a look at the hashes of the newest ones, until one is whole.

    Raises UserError if none is.
    """
    looked: list[Checkpoint] = []
    for number in range(len(found), 0, -1):
        checkpoint = verified(store, found[number - 1])
        if checkpoint is None:
            continue
        looked.insert(0, checkpoint)
        if not checkpoint.fault:
            return [*found[: number - 1], *looked]
    raise UserError("no checkpoint is whole, so none is removed")


def prune(store: RunStore, found: Sequence[Checkpoint], keep: int) -> list[Checkpoint]:
    """Remove all but the newest `keep` whole ones and the best; returns what was removed.

    found: the newest whole one of them verified. Raises BackendError if one cannot be removed.
    """
    removed = to_remove(found, keep)
    for checkpoint in removed:
        store.remove(_path(checkpoint.name))
    return removed


def _path(*parts: str) -> str:
    return "/".join((CHECKPOINTS_DIR, *parts))
