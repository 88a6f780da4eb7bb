"""`orchestrate checkpoints`: what is listed, verified and removed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from running import standing_run

Cli = Callable[..., tuple[int, str, str]]


def save(run_dir: Path, step: int, loss: float | None = None) -> Path:
    """A checkpoint as docs/contract.md describes it."""
    path = run_dir / "checkpoints" / f"step-{step:09d}-attempt-00001"
    path.mkdir(parents=True)
    data = f"weights after {step}".encode()
    (path / "model.pt").write_bytes(data)
    facts = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest: dict[str, Any] = {
        "version": 1, "step": step, "attempt": 1, "world_size": 4, "strategy": "full_shard",
        "format": "full", "validation_loss": loss, "validation_step": step, "versions": {},
        "files": {"model.pt": facts},
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def listed(cli: Cli, *argv: str) -> tuple[int, list[dict[str, Any]]]:
    code, out, _ = cli("checkpoints", "one", "--json", *argv)
    return code, json.loads(out)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = standing_run(tmp_path, "one")
    for step, loss in ((2, 1.25), (4, None), (6, 2.0)):
        save(folder, step, loss)
    return folder


def test_a_list_for_people(cli: Cli, run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-000000004-attempt-00001" / "model.pt").unlink()
    code, out, _ = cli("checkpoints", "one")
    assert code == 0
    head, first, second, _ = out.splitlines()
    assert head.split() == [
        "STEP", "ATTEMPT", "FORMAT", "STRATEGY", "RANKS", "SIZE", "AGE", "VALIDATION", "STATE",
    ]  # fmt: skip
    assert first.split()[:5] == ["2", "1", "full", "full_shard", "4"]
    assert first.split()[-2:] == ["1.2500", "whole"]
    assert second.endswith("broken: model.pt is missing")


def test_a_list_for_programs(cli: Cli, run_dir: Path) -> None:
    code, found = listed(cli)
    assert code == 0
    assert [one["step"] for one in found] == [2, 4, 6]
    last = found[-1]
    size = sum(file.stat().st_size for file in (run_dir / "checkpoints" / last["name"]).iterdir())
    assert last.pop("modified") > 0
    assert last == {
        "name": "step-000000006-attempt-00001", "step": 6, "attempt": 1, "format": "full",
        "strategy": "full_shard", "world_size": 4, "size_bytes": size, "validation_loss": 2.0,
        "whole": True, "verified": False, "fault": None, "removed": False,
    }  # fmt: skip


def test_verify_finds_what_sizes_do_not_show(cli: Cli, run_dir: Path) -> None:
    assert cli("checkpoints", "one", "--verify")[0] == 0
    model = run_dir / "checkpoints" / "step-000000004-attempt-00001" / "model.pt"
    model.write_bytes(model.read_bytes().replace(b"4", b"5"))
    assert cli("checkpoints", "one")[0] == 0
    code, out, _ = cli("checkpoints", "one", "--verify")
    assert code == 1
    states = [line.split("  ")[-1].strip() for line in out.splitlines()[1:]]
    changed = "broken: the contents of model.pt have changed (SHA-256)"
    assert states == ["verified", changed, "verified"]
    code, found = listed(cli, "--verify")
    assert code == 1
    assert [one["whole"] for one in found] == [True, False, True]


def test_prune_keeps_the_newest_that_is_whole_and_the_best(cli: Cli, run_dir: Path) -> None:
    newest = run_dir / "checkpoints" / "step-000000006-attempt-00001" / "model.pt"
    newest.write_bytes(newest.read_bytes().replace(b"6", b"7"))
    save(run_dir, 3)
    code, found = listed(cli, "--prune", "--keep", "1")
    assert code == 0
    assert {one["step"]: one["removed"] for one in found} == {2: False, 3: True, 4: False, 6: False}
    assert [one["step"] for one in listed(cli)[1]] == [2, 4, 6]
    assert "removed" not in cli("checkpoints", "one", "--prune", "--keep", "1")[1]


def test_prune_says_what_it_removed(cli: Cli, run_dir: Path) -> None:
    save(run_dir, 3)
    code, out, _ = cli("checkpoints", "one", "--prune", "--keep", "1")
    assert code == 0
    assert sum("removed (whole)" in line for line in out.splitlines()) == 2
    assert out.splitlines()[-1].startswith("removed 2 of 4, ")


def test_where_nothing_is_whole_nothing_is_removed(cli: Cli, run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").iterdir():
        (path / "model.pt").write_bytes(b"")
    code, _, err = cli("checkpoints", "one", "--prune", "--keep", "1")
    assert code == 2
    assert "no checkpoint is whole, so none is removed" in err
    assert len(listed(cli)[1]) == 3


@pytest.mark.parametrize("state", ["RUNNING", "RESTARTING", "PENDING"])
def test_nothing_is_removed_from_a_run_that_goes_on(cli: Cli, tmp_path: Path, state: str) -> None:
    save(standing_run(tmp_path, "one", state), 2)
    code, _, err = cli("checkpoints", "one", "--prune", "--keep", "1")
    assert code == 2
    assert f"one is {state}" in err
    assert "orchestrate cancel one" in err


@pytest.mark.parametrize("argv", [("--prune",), ("--keep", "2"), ("--prune", "--keep", "0")])
def test_prune_needs_a_number(cli: Cli, run_dir: Path, argv: tuple[str, ...]) -> None:
    code, _, err = cli("checkpoints", "one", *argv)
    assert code == 2
    assert "--keep" in err
    assert len(listed(cli)[1]) == 3


def test_a_run_without_checkpoints(cli: Cli, tmp_path: Path) -> None:
    standing_run(tmp_path, "one")
    assert cli("checkpoints", "one")[:2] == (0, "one has no checkpoint yet\n")
    assert listed(cli, "--verify", "--prune", "--keep", "1") == (0, [])


def test_a_sweep_has_none_of_its_own(cli: Cli, tmp_path: Path) -> None:
    receipt = {"version": 1, "backend": "local", "num_elements": 3}
    (standing_run(tmp_path, "one") / "receipt.json").write_text(json.dumps(receipt))
    code, _, err = cli("checkpoints", "one")
    assert code == 2
    assert "one/0 to one/2" in err


def test_a_folder_that_cannot_be_read_is_not_called_broken(cli: Cli, run_dir: Path) -> None:
    path = run_dir / "checkpoints" / "step-000000004-attempt-00001"
    shutil.rmtree(path)
    path.symlink_to(path.name)  # a loop: whoever follows it gets an error of the system
    manifest = run_dir / "checkpoints" / "step-000000006-attempt-00001" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(manifest.name)
    code, _, err = cli("checkpoints", "one")
    assert code == 1
    assert "manifest.json: cannot be read" in err
