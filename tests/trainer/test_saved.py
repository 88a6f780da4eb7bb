"""Both sides judge checkpoints alike: the trainer that takes them and the launcher that lists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.backends import saved
from orchestrator.backends.runstore import LocalRunStore
from runs import publish
from trainer import checkpoint


def save(run_dir: Path, step: int, loss: float | None = None) -> Path:
    manifest = checkpoint.Manifest(step, 1, 4, "ddp", validation_loss=loss)
    parts = {"model.pt": {"w": torch.full((50,), float(step))}, "trainer.pt": {"step": step}}
    return publish(run_dir, manifest, parts)


def with_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def flip(path: Path) -> None:
    file = path / "model.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def listed(name: str, **facts: Any) -> Callable[[Path], None]:
    """Another file in the manifest."""
    return lambda path: with_manifest(path, lambda c: c["files"].update({name: facts}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a stray file": lambda path: (path / "core").write_bytes(b"x"),
    "no loss": lambda path: with_manifest(path, lambda c: c.pop("validation_loss")),
    "another layout": lambda path: with_manifest(path, lambda c: c.update(format="sharded")),
    "a missing file": lambda path: (path / "model.pt").unlink(),
    "a cut file": lambda path: (path / "trainer.pt").write_bytes(b"x"),
    "a folder for a file": lambda path: folder_for_file(path / "model.pt"),
    "a flipped bit": flip,
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_bytes(b""),
    "a cut manifest": lambda path: (path / "manifest.json").write_bytes(b'{"step": 3, "at'),
    "a list": lambda path: (path / "manifest.json").write_text("[]"),
    "no step": lambda path: with_manifest(path, lambda c: c.pop("step")),
    "no strategy": lambda path: with_manifest(path, lambda c: c.pop("strategy")),
    "an unknown key": lambda path: with_manifest(path, lambda c: c.update(x=1)),
    "another version": lambda path: with_manifest(path, lambda c: c.update(version=2)),
    "another step": lambda path: with_manifest(path, lambda c: c.update(step=4)),
    "another attempt": lambda path: with_manifest(path, lambda c: c.update(attempt=2)),
    "no files": lambda path: with_manifest(path, lambda c: c.update(files={})),
    "files as a list": lambda path: with_manifest(path, lambda c: c.update(files=[])),
    "a file elsewhere": listed("../x", size_bytes=0, sha256=64 * "0"),
    "a file that never was": listed("y", size_bytes=0, sha256=64 * "0"),
    "a file without a size": listed("model.pt", sha256=64 * "0"),
    "a file without a hash": lambda path: with_manifest(
        path, lambda c: c["files"]["model.pt"].pop("sha256")
    ),
}
WHOLE = {"nothing", "a stray file", "no loss", "another layout"}


def verifies(path: Path) -> bool:
    try:
        checkpoint.verify(path)
    except checkpoint.BrokenCheckpoint:
        return False
    return True


@pytest.mark.parametrize("damage", DAMAGE)
def test_both_sides_say_the_same(tmp_path: Path, damage: str) -> None:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    path = save(tmp_path, 3, loss=1.5)
    DAMAGE[damage](path)
    store = LocalRunStore(tmp_path)
    (found,) = saved.all_verified(store, saved.list_saved(store))
    assert (found.fault == "") == (damage in WHOLE)
    assert verifies(path) == (damage in WHOLE)
    assert found.fault.isprintable()
    assert (found.step, found.attempt) == (3, 1)


def test_the_facts_are_those_of_the_manifest(tmp_path: Path) -> None:
    path = save(tmp_path, 3, loss=1.5)
    (found,) = saved.list_saved(LocalRunStore(tmp_path))
    assert dict(found.facts) == {
        "format": "full", "strategy": "ddp", "world_size": 4, "validation_loss": 1.5,
    }  # fmt: skip
    assert found.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    assert not found.is_verified


def test_unfinished_and_foreign_folders_are_no_checkpoints(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    shutil.copytree(path, path.with_name(f".tmp-{path.name}"))
    shutil.copytree(path, path.with_name("mine"))
    (path.parent / "step-000000009-attempt-00001").write_text("a file")
    found = saved.list_saved(LocalRunStore(tmp_path))
    assert [one.name for one in found] == [path.name]
    assert [p.name for p in checkpoint.published(path.parent)] == [path.name]


@pytest.mark.parametrize(
    ("keep", "broken", "stay"),
    [
        (1, (), {2, 6}),
        (2, (), {2, 5, 6}),
        (9, (), {1, 2, 3, 4, 5, 6}),
        (1, (6,), {2, 5, 6}),
        (2, (5,), {2, 4, 6}),
        (1, (2,), {3, 6}),
    ],
)
def test_the_newest_whole_ones_and_the_best_stay(
    tmp_path: Path, keep: int, broken: tuple[int, ...], stay: set[int]
) -> None:
    """Step 2 is the best, step 3 the next best."""
    for step, loss in enumerate([None, 1.0, 1.5, 2.0, None, 3.0], 1):
        path = save(tmp_path, step, loss)
        if step in broken:
            (path / "model.pt").unlink()
    store = LocalRunStore(tmp_path)
    saved.prune(store, saved.newest_verified(store, saved.list_saved(store)), keep)
    assert {one.step for one in saved.list_saved(store)} == stay
    assert any(verifies(path) for path in checkpoint.published(tmp_path / "checkpoints"))
