"""Which checkpoint an attempt continues from: the newest whole one, the same on all hosts.

Hosts may see different files: one behind a cache, one with a broken disk, one without the shared
folder. What is broken anywhere is passed over everywhere; what some host does not see in time ends
the attempt, since an older state must never be taken in silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainer import checkpoint
from trainer.checkpoint import MANIFEST, BrokenCheckpoint, Files
from trainer.peers import Member, Peers, some

# Linux's NFS client believes what it knows of a folder for up to a minute (nfs(5): acdirmax=60).
VISIBLE_WITHIN_S = 65.0
LOOK_EVERY_S = 0.2


class NotVisible(RuntimeError):
    """Some hosts see a checkpoint, others do not."""


@dataclass(frozen=True)
class Look:
    """What one rank sees of a checkpoint.

    kind: error is what the disk says when it does not say whether it is whole. reason: in words,
    empty for whole. digest: of the manifest; files: as it names them, not told to other ranks.
    """

    who: Member
    kind: Literal["whole", "missing", "broken", "error"]
    reason: str = ""
    digest: str = ""
    files: Files | None = None


def newest_whole(folder: Path, peers: Peers) -> tuple[Path | None, list[BrokenCheckpoint]]:
    """The newest checkpoint that is whole on all hosts, or None, and what is wrong with later ones.

    A collective, with the same answer on all ranks; the ranks share the reading. Raises NotVisible,
    or OSError where a disk does not say whether it is whole, on all ranks.
    """
    broken: list[BrokenCheckpoint] = []
    for name in _names(folder, peers):
        path = folder / name
        reason = _reason_against(path, peers)
        if reason is None:
            return path, broken
        broken.append(BrokenCheckpoint(path, reason))
    return None, broken


def _names(folder: Path, peers: Peers) -> list[str]:
    """What any rank sees, newest first: rank 0 may be the one behind a cache."""
    try:
        names, fault = [path.name for path in checkpoint.published(folder)], ""
    except OSError as error:
        names, fault = [], f"{peers.me}: {error}"
    listed = peers.exchange((names, fault), f"list of checkpoints in {folder}")
    faults = [said for _, said in listed if said]
    if faults:
        raise OSError(f"the checkpoints in {folder} cannot be listed: {'; '.join(faults)}")
    return sorted({name for seen, _ in listed for name in seen}, reverse=True)


def _reason_against(path: Path, peers: Peers) -> str | None:
    """Why this checkpoint cannot be taken; None if it can."""
    mine = look(path, peers.me)
    looks = _exchange(mine, path, peers)
    first = next((seen for seen in looks if seen.kind == "whole"), None)
    if first is None:
        return _words(looks)
    if any(seen.digest != first.digest for seen in looks):
        within_s = peers.patience_s(VISIBLE_WITHIN_S)
        mine = _look_again(mine, path, first.digest, within_s)
        looks = _exchange(mine, path, peers)
        if any(seen.kind == "missing" for seen in looks):
            raise NotVisible(_not_visible(path, looks, within_s))
        if any(seen.digest != first.digest for seen in looks):
            return _words([_compared(seen, first) for seen in looks])
    share = share_of(mine.files or {}, peers.me.rank, peers.size)
    return _words(_exchange(_verified(path, share, peers.me), path, peers))


def look(path: Path, me: Member) -> Look:
    """What this rank sees of a checkpoint, without reading all of it."""

    def read() -> Look:
        manifest = checkpoint.read_manifest(path)
        return Look(me, "whole", "", checkpoint.sha256_of(path / MANIFEST), manifest.files)

    return _judged(read, me)


def _verified(path: Path, files: Files, me: Member) -> Look:
    def read() -> Look:
        checkpoint.verify_files(path, files)
        return Look(me, "whole")

    return _judged(read, me)


def _judged(read: Callable[[], Look], me: Member) -> Look:
    try:
        return read()
    except BrokenCheckpoint as error:
        return Look(me, "missing" if error.missing else "broken", error.reason)
    except checkpoint.MISSING as error:  # it was pruned meanwhile
        return Look(me, "missing", str(error))
    except OSError as error:
        return Look(me, "error", str(error))


def _look_again(seen: Look, path: Path, digest: str, within_s: float) -> Look:
    """What this rank sees once it sees what others do, or when it has waited long enough."""
    deadline = time.monotonic() + within_s
    while seen.digest != digest and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
        seen = look(path, seen.who)
    return seen


def _exchange(mine: Look, path: Path, peers: Peers) -> list[Look]:
    """What all ranks see; raises OSError if a disk does not answer one of them."""
    looks = peers.exchange(replace(mine, files=None), f"look at checkpoint {path}")
    errors = [f"{seen.who}: {seen.reason}" for seen in looks if seen.kind == "error"]
    if errors:
        raise OSError(f"checkpoint {path} cannot be read: {'; '.join(errors)}")
    return looks


def _compared(seen: Look, first: Look) -> Look:
    if seen.kind == "whole" and seen.digest != first.digest:
        return replace(seen, kind="broken", reason=f"not the manifest that {first.who} sees")
    return seen


def _words(looks: Sequence[Look]) -> str | None:
    """What is wrong, with the hosts that say so; None if all ranks find it whole."""
    reasons: dict[str, list[str]] = {}
    for seen in looks:
        if seen.kind != "whole":
            reasons.setdefault(seen.reason, []).append(seen.who.host)
    return "; ".join(f"{why} (on {some(hosts)})" for why, hosts in reasons.items()) or None


def _not_visible(path: Path, looks: Sequence[Look], within_s: float) -> str:
    missing = some(str(seen.who) for seen in looks if seen.kind == "missing")
    there = some(str(seen.who) for seen in looks if seen.kind == "whole")
    return (
        f"checkpoint {path}: {there} can read it, but {missing} cannot, also not after"
        f" {within_s:g} s. Every node must see the same run folder; to continue from an"
        " older one all the same, remove this one"
    )


def share_of(files: Files, rank: int, num_ranks: int) -> Files:
    """The files that `rank` reads to verify them: each goes to the rank with the least so far."""
    loads = [0] * num_ranks
    mine: Files = {}
    for name in sorted(files, key=lambda name: (-files[name]["size_bytes"], name)):
        reader = loads.index(min(loads))
        loads[reader] += files[name]["size_bytes"]
        if reader == rank:
            mine[name] = files[name]
    return mine
