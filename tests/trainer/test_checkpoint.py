"""Checkpoints on disk: published whole, checked, kept and removed."""

from __future__ import annotations

import errno
import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ranks import run_ranks
from trainer.checkpoint import (
    BrokenCheckpoint,
    Manifest,
    error_behind,
    load_part,
    name_of,
    published,
    read_manifest,
    verify,
)
from trainer.contract import Contract, Superseded
from trainer.pruning import prune
from trainer.state import random_state, seed_everything, set_random_state
from trainer.writing import Draft, TookTooLong, free_space

CPU = torch.device("cpu")


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    return Contract(0, 0, 1, 1, tmp_path, tmp_path / "checkpoints", tmp_path)


def save(contract: Contract, step: int, loss: float | None = None, attempt: int = 1) -> Path:
    manifest = Manifest(step, attempt, 1, "ddp", validation_loss=loss)
    parts = {"model.pt": {"w": torch.full((100,), float(step))}, "trainer.pt": {"step": step}}
    return publish(manifest, parts, contract)


def publish(
    manifest: Manifest,
    parts: dict[str, Any],
    contract: Contract,
    deadline: float = math.inf,
) -> Path:
    contract.checkpoint_dir.mkdir(exist_ok=True)
    contract = replace(contract, attempt=manifest.attempt)
    draft = Draft.of(contract, manifest.step, deadline)
    if draft.begin():
        draft.publish(manifest, draft.write(parts), contract)
    return draft.final


def names(contract: Contract) -> list[str]:
    return [path.name for path in published(contract.checkpoint_dir)]


def test_what_is_published_is_whole(contract: Contract, root: Path) -> None:
    path = save(contract, 7, loss=1.5)
    assert path.name == "step-000000007-attempt-00001"
    manifest = verify(path)
    assert (manifest.step, manifest.validation_loss) == (7, 1.5)
    assert load_part(path, "model.pt")["w"].tolist() == [7.0] * 100
    assert sorted(p.name for p in contract.checkpoint_dir.iterdir()) == [path.name]
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((root / "orchestrator/data/manifest.schema.json").read_text())
    jsonschema.validate(json.loads((path / "manifest.json").read_text()), schema)


def test_a_checkpoint_is_never_overwritten(contract: Contract) -> None:
    path = save(contract, 7)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert save(contract, 7, loss=1.0) == path
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert names(contract) == [path.name]
    truncate(path)
    with pytest.raises(BrokenCheckpoint, match="does not have the"):
        save(contract, 7)
    assert names(contract) == [path.name]


def test_a_superseded_attempt_publishes_nothing(contract: Contract) -> None:
    (contract.run_dir / "attempts" / "2").mkdir()
    with pytest.raises(Superseded, match="attempt 1 is superseded"):
        save(contract, 7)
    assert names(contract) == []


def test_what_is_written_after_the_deadline_is_refused(contract: Contract) -> None:
    parts = {"model.pt": torch.zeros(10)}
    with pytest.raises(RuntimeError) as caught:
        publish(Manifest(3, 1, 1, "ddp"), parts, contract, deadline=-math.inf)
    assert "timeouts.checkpoint" in str(error_behind(caught.value, TookTooLong))
    assert names(contract) == []


def as_nobody(folder: Path, fn: Callable[[], object]) -> object:
    """fn() in `folder` as a user who may do nothing special; returns what it raised, as text."""
    os.chdir(folder)
    os.seteuid(65534)
    try:
        return fn()
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def prune_protected(newest: Path) -> object:
    return as_nobody(newest.parent, lambda: len(prune(Path(newest.name), 1, True, 1)))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_what_cannot_be_removed_stays(contract: Contract, capfd: Any) -> None:
    paths = [save(contract, step) for step in (1, 2, 3)]
    contract.checkpoint_dir.chmod(0o777)
    assert run_ranks(1, prune_protected, paths[-1]) == [2]
    assert names(contract) == [path.name for path in paths]
    assert capfd.readouterr().err.count("old checkpoint stays: step-") == 2


def truncate(path: Path) -> None:
    (path / "model.pt").write_bytes((path / "model.pt").read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray((path / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "model.pt").write_bytes(content)


def remove(path: Path) -> None:
    (path / "trainer.pt").unlink()


def no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def cut_manifest(path: Path) -> None:
    content = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(content[: len(content) // 2])


def manifest_of_another(path: Path) -> None:
    content = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(content.replace('"step": 2', '"step": 1'))


def manifest_with(path: Path, **changes: Any) -> None:
    content = json.loads((path / "manifest.json").read_text()) | changes
    (path / "manifest.json").write_text(json.dumps(content))


def names_a_file_outside(path: Path) -> None:
    manifest_with(path, files={"../x": {"size_bytes": 0, "sha256": "0" * 64}})


def names_no_file(path: Path) -> None:
    manifest_with(path, files={})


def from_the_future(path: Path) -> None:
    manifest_with(path, version=2)


def in_another_format(path: Path) -> None:
    manifest_with(path, format="zipped")


def list_for_a_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [truncate, flip, remove, no_manifest, cut_manifest, manifest_of_another, names_a_file_outside,
     names_no_file, from_the_future, in_another_format, list_for_a_manifest],
)  # fmt: skip
@pytest.mark.case("L19")
def test_damage_is_seen(contract: Contract, damage: Callable[[Path], None]) -> None:
    path = save(contract, 2)
    verify(path)
    damage(path)
    with pytest.raises(BrokenCheckpoint):
        verify(path)


@pytest.mark.case("L19")
def test_the_last_ones_and_the_best_are_kept(contract: Contract) -> None:
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: None, 5: 2.5}
    paths = {step: save(contract, step, loss) for step, loss in losses.items()}
    removed = prune(paths[5], keep=2, keep_best=True, attempt=1)
    assert removed == [paths[1], paths[3]]
    assert names(contract) == [paths[step].name for step in (2, 4, 5)]
    prune(paths[5], keep=1, keep_best=False, attempt=1)
    assert names(contract) == [paths[5].name]


def test_broken_ones_do_not_count(contract: Contract) -> None:
    paths = {step: save(contract, step) for step in (1, 2, 3, 4)}
    truncate(paths[3])
    flip(paths[2])  # its sizes are right: only who has verified it knows
    prune(paths[4], keep=2, keep_best=True, attempt=1, broken=[paths[2]])
    assert names(contract) == [paths[1].name, paths[4].name]


def test_what_is_later_than_the_new_one_stays(contract: Contract) -> None:
    """A run that starts anew, or that fell back, removes nothing that is further on."""
    later, new = save(contract, 300), save(contract, 100, attempt=2)
    older = save(contract, 50)
    assert prune(new, keep=1, keep_best=True, attempt=2) == [older]
    assert names(contract) == [new.name, later.name]


def test_unfinished_folders_of_earlier_attempts_go(contract: Contract) -> None:
    new = save(contract, 5, attempt=2)
    for attempt in (1, 2, 3):
        (contract.checkpoint_dir / f".tmp-{name_of(9, attempt)}").mkdir()
    (contract.checkpoint_dir / ".tmp-probe-attempt-00001").touch()
    (contract.checkpoint_dir / ".tmp-mine").mkdir()
    prune(new, keep=1, keep_best=True, attempt=2)
    left = sorted(path.name for path in contract.checkpoint_dir.iterdir())
    assert left == [".tmp-mine", f".tmp-{name_of(9, 2)}", f".tmp-{name_of(9, 3)}", new.name]


def test_an_error_of_the_disk_is_not_taken_for_a_missing_file(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = save(contract, 5), os.stat

    def fail_for_weights(file: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(file) == str(path / "model.pt"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        return stat(file, *args, **options)

    monkeypatch.setattr(os, "stat", fail_for_weights)
    # As it is from Python 3.14 on: any error of the disk is no file.
    monkeypatch.setattr(Path, "is_file", os.path.isfile)
    with pytest.raises(OSError, match="Input/output error"):
        read_manifest(path)


def test_free_space_of_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "exists", fail)
    said = free_space(tmp_path)
    assert said == f"free space of {tmp_path} not known: Input/output error"


def test_random_states_come_back_from_a_file(contract: Contract) -> None:
    seed_everything(11)
    random.gauss(0, 1)
    np.random.standard_normal(3)
    state = random_state(CPU)
    path = publish(Manifest(1, 1, 1, "ddp"), {"trainer.pt": {"random": [state]}}, contract)

    def draw() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(()))

    expected = draw()
    seed_everything(0)
    assert draw() != expected
    set_random_state(load_part(path, "trainer.pt")["random"][0], CPU)
    assert draw() == expected
