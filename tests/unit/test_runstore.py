"""Reading and writing a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import runstore
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.errors import BackendError


@pytest.fixture
def store(tmp_path: Path) -> LocalRunStore:
    return LocalRunStore(tmp_path / "a b'\n$x")


def test_what_is_written_is_read(store: LocalRunStore) -> None:
    store.write("rendered/x.json", b"{}")
    store.write("rendered/x.json", b"[]")
    assert store.read("rendered/x.json") == b"[]"
    assert store.list() == ["rendered"]
    assert store.list("rendered") == ["x.json"]


def test_what_is_not_there_is_empty_to_list_and_tail(store: LocalRunStore) -> None:
    store.write("file", b"1")
    assert store.list("no") == store.list("file") == []
    assert store.tail("no", 0) == store.tail("file/x", 3) == b""
    with pytest.raises(BackendError, match="no: No such file"):
        store.read("no")


@given(data=st.binary(max_size=200), cut=st.integers(0, 250))
def test_tail_goes_on_where_the_last_one_ended(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    store = LocalRunStore(tmp_path_factory.mktemp("run"))
    store.write("log", data[:cut])
    first = store.tail("log", 0)
    store.write("log", data)
    assert first + store.tail("log", len(first)) == data


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_paths_stay_in_the_run_folder(store: LocalRunStore, path: str) -> None:
    for call in (store.list, store.read):
        with pytest.raises(BackendError, match="relative"):
            call(path)
    with pytest.raises(BackendError, match="relative"):
        store.write(path, b"")
    with pytest.raises(BackendError, match="relative"):
        store.tail(path, 0)


def test_a_huge_file_is_read_by_parts(
    store: LocalRunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runstore, "READ_LIMIT_BYTES", 10)
    store.write("log", b"x" * 25)
    with pytest.raises(BackendError, match="larger than 10 bytes"):
        store.read("log")
    assert [len(store.tail("log", n)) for n in (0, 10, 20)] == [10, 10, 5]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="cannot write it"):
        LocalRunStore(tmp_path / "file").write("x", b"")
