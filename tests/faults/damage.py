"""Ways in which a published checkpoint can be hurt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

MANIFEST = "manifest.json"
Damage = Callable[[Path, Path], None]
"""Hurts the first folder; the second is that of another checkpoint of the run."""


def every_kind(files: list[str]) -> dict[str, Damage]:
    """What can happen to a checkpoint of these files and its manifest, by description."""
    largest = [name for name in files if name.endswith(("model.pt", ".distcp"))][-1]
    flips = {f"a bit of {name}": _flipped(name) for name in [*files, MANIFEST]}
    lacks = {f"no {name}": _missing(name) for name in (largest, "trainer.pt", MANIFEST)}
    return flips | lacks | {
        "cut": _cut(largest),
        "one file of another": _of_another([largest]),
        "manifest of another": _of_another([MANIFEST]),
        "all files of another": _of_another(files),
    }  # fmt: skip


def files_of(folder: Path) -> list[str]:
    """The files that a checkpoint's manifest names."""
    return sorted(json.loads((folder / MANIFEST).read_bytes())["files"])


def _flipped(name: str) -> Damage:
    def flip(folder: Path, _other: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return flip


def _missing(name: str) -> Damage:
    return lambda folder, _other: (folder / name).unlink()


def _cut(name: str) -> Damage:
    def cut(folder: Path, _other: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1])

    return cut


def _of_another(names: list[str]) -> Damage:
    def copy(folder: Path, other: Path) -> None:
        for name in names:
            shutil.copyfile(other / name, folder / name)

    return copy
