"""What the checkpoints of a run are, by their manifests. Pure: names, bytes and hashes in.

The launcher's side of "Checkpoints" in docs/contract.md; trainer/checkpoint.py is the other, and
tests hold both to the same verdicts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MANIFEST = "manifest.json"
VERSION = 1
NAME = re.compile(r"step-([0-9]{9})-attempt-([0-9]{5})")
# Of the manifest's keys (orchestrator/data/manifest.schema.json), those that it must have, others.
REQUIRED = {"step", "attempt", "world_size", "strategy", "files"}
OTHERS = {"version", "format", "versions", "validation_loss", "validation_step"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder.

    Args:
        name: of the folder; it begins with the step, so that names sort by age.
        modified: when its manifest (or what there is) was written, in seconds since 1970.
        size_bytes: of all files that are there.
        fault: why it is not whole; empty if it is, as far as was looked.
        is_verified: whether every hash was looked at.
        facts: format, strategy, world_size and validation_loss of the manifest; None if unknown.
        hashes: the SHA-256 that each file must have, by name.
    """

    name: str
    modified: float
    size_bytes: int
    fault: str = ""
    is_verified: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.name[5:14])

    @property
    def attempt(self) -> int:
        """Number of the attempt that wrote it."""
        return int(self.name[-5:])

    @property
    def validation_loss(self) -> float | None:
        """Nats per token; None where none was measured."""
        loss = self.facts.get("validation_loss")
        return float(loss) if isinstance(loss, (int, float)) else None

    def verified(self, found: Mapping[str, str]) -> Checkpoint:
        """The same after a look at the SHA-256 of each of its files, given by name."""
        changed = next((n for n, value in self.hashes.items() if found.get(n) != value), None)
        fault = f"the contents of {changed} have changed (SHA-256)" if changed else self.fault
        return replace(self, fault=fault, is_verified=True)


class _Fault(Exception):
    """Why a checkpoint is not whole."""


def judged(name: str, manifest: bytes, sizes: Mapping[str, int], modified: float) -> Checkpoint:
    """What a folder is by its manifest and the sizes of its files; no hash is looked at.

    Args:
        name: of the folder; it matches NAME.
        manifest: the contents of its manifest; empty if there is none.
        sizes: bytes of each file in the folder, by name.
    """
    checkpoint = Checkpoint(name, modified, sum(sizes.values()))
    try:
        content = _parsed(manifest)
        if content.get("version", VERSION) != VERSION or _name(content) != name:
            raise _Fault("the manifest belongs to another checkpoint or version")
        hashes = _compare(content["files"], sizes)
    except _Fault as fault:
        return replace(checkpoint, fault=str(fault))
    facts = {key: content.get(key) for key in ("strategy", "world_size", "validation_loss")}
    facts["format"] = content.get("format", "full")
    return replace(checkpoint, facts=facts, hashes=hashes)


def _parsed(manifest: bytes) -> dict[str, Any]:
    try:
        content = json.loads(manifest)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _Fault("no readable manifest")
    wrong = sorted(REQUIRED - content.keys()) + sorted(content.keys() - REQUIRED - OTHERS)
    if wrong or not isinstance(content["files"], dict):
        raise _Fault(f"no readable manifest: {', '.join(wrong) or 'files'}")
    if not content["files"]:
        raise _Fault("the manifest names no file")
    return content


def _name(content: Mapping[str, Any]) -> str:
    step, attempt = content["step"], content["attempt"]
    if type(step) is not int or type(attempt) is not int:
        raise _Fault("no readable manifest: step, attempt")
    return f"step-{step:09d}-attempt-{attempt:05d}"


def _compare(files: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, str]:
    """The SHA-256 that each file must have, if each is there with its size."""
    hashes = {}
    for name, facts in files.items():
        size = facts.get("size_bytes") if isinstance(facts, dict) else None
        digest = facts.get("sha256") if isinstance(facts, dict) else None
        if type(size) is not int or not isinstance(digest, str):
            raise _Fault(f"no readable manifest: files.{name}")
        if "/" in name or name not in sizes:
            raise _Fault(f"{name} is missing")
        if sizes[name] != size:
            raise _Fault(f"{name} does not have the {size} bytes of its manifest")
        hashes[name] = digest
    return hashes


def to_remove(checkpoints: Sequence[Checkpoint], keep: int) -> list[Checkpoint]:
    """Those that go when the newest `keep` whole ones and the best stay; at least one is whole.

    The best has the lowest validation loss. What is not whole goes if it is older than the newest
    whole one.

    Args:
        checkpoints: oldest first; of the whole ones the newest must have been verified.
        keep: from 1.
    """
    whole = [checkpoint for checkpoint in checkpoints if not checkpoint.fault]
    kept = {checkpoint.name for checkpoint in whole[-keep:]} | _best(whole)
    newest = whole[-1].name if whole else ""
    return [c for c in checkpoints if c.name not in kept and c.name < newest]


def _best(whole: Collection[Checkpoint]) -> set[str]:
    losses = {c.name: c.validation_loss for c in whole if c.validation_loss is not None}
    return {min(losses, key=lambda name: losses[name])} if losses else set()
