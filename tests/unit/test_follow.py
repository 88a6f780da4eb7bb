"""cli.follow: whole lines of a file that grows, whatever its size and that of its lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends import runstore
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.cli import follow
from orchestrator.cli.follow import Follower


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at once is small, and so is a line, so that small files are large ones."""
    monkeypatch.setattr(runstore, "READ_LIMIT_BYTES", 7)
    monkeypatch.setattr(follow, "LINE_LIMIT_BYTES", 10)


parts = st.lists(st.binary(max_size=25) | st.text("ab\n", max_size=40).map(str.encode), max_size=4)


@pytest.mark.usefixtures("small_chunks")
@settings(deadline=None)
@given(parts=parts)
def test_no_byte_of_a_file_that_grows_is_lost(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("grows") / "log"
    follower = Follower(LocalRunStore(file.parent), file.name)
    got = []
    for part in parts:
        with file.open("ab") as stream:
            stream.write(part)
        got += list(follower.lines())
        assert len(follower.rest) <= follow.LINE_LIMIT_BYTES
    got += list(follower.last())
    assert all(len(line) <= follow.LINE_LIMIT_BYTES for line in got)
    whole = b"".join(parts)
    assert b"".join(got) == whole.replace(b"\n", b"")
    if max((len(line) for line in whole.split(b"\n")), default=0) <= follow.LINE_LIMIT_BYTES:
        assert got == whole.removesuffix(b"\n").split(b"\n") if whole else not got
