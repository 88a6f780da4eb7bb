"""Checkpoints behind a real sshd: listed, hashed and removed there, with nothing copied here."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.backends import saved
from orchestrator.backends.remote import SshSite
from orchestrator.backends.runstore import LocalRunStore, RunStore
from orchestrator.errors import BackendError
from slurm.sshd import HOST, missing, running_sshd

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
HOSTILE = 'it\'s a "$HOME" `id`\n$(id) \\ ü*; -n'


@pytest.fixture(scope="module")
def site() -> Iterator[SshSite]:
    with (
        tempfile.TemporaryDirectory(prefix="ssh-", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
        running_sshd() as server,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)  # no connection of whoever runs this
        there = SshSite(HOST, server.command())
        yield there
        there.connection.close()


@pytest.fixture(params=["local", "ssh"])
def store(request: pytest.FixtureRequest, site: SshSite, tmp_path: Path) -> RunStore:
    """Both kinds of store on the same folder: what they promise is the same."""
    root = tmp_path / HOSTILE
    root.mkdir()
    return LocalRunStore(root) if request.param == "local" else site.store(root)


def save(root: Path, step: int) -> Path:
    path = root / "checkpoints" / f"step-{step:09d}-attempt-00001"
    path.mkdir(parents=True)
    data = bytes(range(256)) * step
    files = {}
    for name in (".metadata", "__0_0.distcp", "a b.pt"):
        (path / name).write_bytes(data)
        files[name] = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    facts = {"step": step, "attempt": 1, "world_size": 2, "strategy": "ddp", "format": "sharded"}
    (path / "manifest.json").write_text(json.dumps({"version": 1, "files": files, **facts}))
    return path


def test_checkpoints_are_listed_verified_and_removed(store: RunStore, tmp_path: Path) -> None:
    root = tmp_path / HOSTILE
    assert saved.list_saved(store) == []
    paths = [save(root, step) for step in (1, 2, 3)]
    found = saved.list_saved(store)
    assert [(one.step, one.fault, one.facts["format"]) for one in found] == [
        (1, "", "sharded"), (2, "", "sharded"), (3, "", "sharded"),
    ]  # fmt: skip
    for one, path in zip(found, paths, strict=True):
        assert one.modified == pytest.approx((path / "manifest.json").stat().st_mtime, abs=1e-3)
        assert one.size_bytes == sum(file.stat().st_size for file in path.iterdir())
    shard = paths[1] / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    found = saved.all_verified(store, saved.list_saved(store))
    changed = "the contents of __0_0.distcp have changed (SHA-256)"
    assert [one.fault for one in found] == ["", changed, ""]
    saved.prune(store, found, keep=1)
    assert [one.step for one in saved.list_saved(store)] == [3]
    assert not paths[0].exists()
    assert not paths[1].exists()


def test_one_that_the_run_removes_meanwhile_is_left_out(store: RunStore, tmp_path: Path) -> None:
    paths = [save(tmp_path / HOSTILE, step) for step in (1, 2)]
    found = saved.list_saved(store)
    store.remove(f"checkpoints/{paths[0].name}")
    assert [one.step for one in saved.all_verified(store, found)] == [2]


def test_a_file_that_cannot_be_hashed_is_told(store: RunStore, tmp_path: Path) -> None:
    path = save(tmp_path / HOSTILE, 1)
    found = saved.list_saved(store)
    (path / ".metadata").unlink()
    (one,) = saved.all_verified(store, found)
    assert one.fault.startswith("cannot be read: ")
    assert ".metadata" in one.fault


def test_files_below_a_linked_folder_are_seen(store: RunStore, tmp_path: Path) -> None:
    root = tmp_path / HOSTILE
    save(tmp_path / "scratch", 1)
    (root / "checkpoints").symlink_to(tmp_path / "scratch" / "checkpoints")
    assert [one.step for one in saved.list_saved(store)] == [1]


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x", "a\0b"])
def test_paths_stay_in_the_run_folder(store: RunStore, path: str) -> None:
    for call in (store.files, store.remove):
        with pytest.raises(BackendError, match="relative"):
            call(path)
    with pytest.raises(BackendError, match="relative"):
        store.ends([path], 10)
    with pytest.raises(BackendError, match="relative"):
        store.sha256([path])


def test_what_is_not_there(store: RunStore) -> None:
    store.remove("no")
    assert store.files("no") == {}
    assert store.ends(["no"], 5) == [b""]
    with pytest.raises((BackendError, OSError), match="No such file"):
        store.sha256(["no"])
