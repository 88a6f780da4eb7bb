"""The newest whole checkpoint is found alike by all ranks, also where hosts see different files.

A rank stands for a host: each is given a folder of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranks import Ended, end_ranks, grouped, run_ranks
from runs import Run, configuration
from trainer import finding, probing
from trainer.checkpoint import MANIFEST, Manifest, name_of
from trainer.contract import Contract
from trainer.limits import Limit
from trainer.main import main
from trainer.peers import NAMES_SHOWN, Peers, some
from trainer.writing import Draft

Found = tuple[str | None, list[tuple[str, str]]]
THIRD, SECOND, FIRST = (name_of(step, 1) for step in (3, 2, 1))


def save(folder: Path, step: int, attempt: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    draft = Draft.of(Contract(0, 0, 1, attempt, folder, folder, folder), step, float("inf"))
    draft.begin()
    parts = {"model.pt": {"w": torch.full((100,), float(step))}, "trainer.pt": {"step": step}}
    manifest = Manifest(step, attempt, 1, "ddp")
    draft.publish(manifest, draft.write(parts), Contract(0, 0, 1, attempt, folder, folder, folder))
    return draft.final


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """What each of two hosts sees: the same three checkpoints."""
    here, there = tmp_path / "here", tmp_path / "there"
    for step in (1, 2, 3):
        save(here, step)
    shutil.copytree(here, there)
    return [here, there]


def _find(folders: Sequence[Path], timeout_s: float = 30) -> Found:
    path, broken = finding.newest_whole(
        folders[int(os.environ["RANK"])], Peers(Limit(timeout_s, "timeouts.load"))
    )
    return path.name if path is not None else None, [
        (error.path.name, error.reason) for error in broken
    ]


def find(folders: Sequence[Path]) -> Found:
    """What all ranks find, which is the same on all."""
    first, *others = run_ranks(len(folders), grouped, _find, folders)
    assert others == [first] * len(others)
    return first  # type: ignore[no-any-return]


def errors(folders: Sequence[Path], timeout_s: float = 30) -> list[str]:
    """The last line of each rank's error."""
    ended: list[Ended] = end_ranks(len(folders), grouped, _find, folders, timeout_s)
    return [(end.error or "no error").strip().splitlines()[-1] for end in ended]


def test_the_newest_is_by_step_and_then_by_attempt(tmp_path: Path) -> None:
    save(tmp_path, 5, attempt=3)
    save(tmp_path, 6, attempt=1)
    expected = save(tmp_path, 6, attempt=2)
    (tmp_path / f".tmp-{name_of(9, 1)}").mkdir()
    (tmp_path / "notes").mkdir()
    assert find([tmp_path, tmp_path]) == (expected.name, [])
    assert find([tmp_path / "none"]) == (None, [])


def flip(path: Path) -> None:
    content = bytearray((path / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "model.pt").write_bytes(content)


def cut(path: Path) -> None:
    (path / "trainer.pt").write_bytes((path / "trainer.pt").read_bytes()[:-1])


def of_another_save(path: Path) -> None:
    """A torn set: one file is from another save of the same model."""
    shutil.copy(path.parent / FIRST / "model.pt", path / "model.pt")


def no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def no_file(path: Path) -> None:
    (path / "model.pt").unlink()


@pytest.mark.parametrize("damage", [flip, cut, of_another_save, no_manifest, no_file])
@pytest.mark.case("T23")
def test_what_is_broken_for_all_is_passed_over(
    folders: list[Path], damage: Callable[[Path], None]
) -> None:
    damage(folders[0] / THIRD)
    name, broken = find([folders[0]] * 3)
    assert name == SECOND
    assert [name for name, _ in broken] == [THIRD]
    for name in (SECOND, FIRST):
        damage(folders[0] / name) if damage is not of_another_save else flip(folders[0] / name)
    assert find([folders[0]])[0] is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("damage", "words"), [(flip, "have changed (SHA-256) (on "), (cut, "does not have the ")]
)
def test_what_is_broken_for_one_host_is_passed_over_by_all(
    folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    monkeypatch.setattr(finding, "VISIBLE_WITHIN_S", 0.5)
    for folder in (THIRD, SECOND):
        damage(folders[rank] / folder)
    if damage is flip:  # model.pt is the larger file, and so it is rank 0 that reads it
        folders = folders if rank == 0 else folders[::-1]
    name, broken = find(folders)
    assert name == FIRST
    assert [path for path, _ in broken] == [THIRD, SECOND]
    assert all(words in reason for _, reason in broken)


def test_two_saves_of_one_name_are_never_taken_for_one(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "VISIBLE_WITHIN_S", 0.5)
    shutil.rmtree(folders[1] / THIRD)
    draft = save(folders[1].parent / "other", 3)
    manifest = (draft / MANIFEST).read_text().replace('"ddp"', '"no_shard"')
    (draft / MANIFEST).write_text(manifest)
    draft.rename(folders[1] / THIRD)
    name, broken = find(folders)
    assert name == SECOND
    assert "not the manifest that rank 0 on " in broken[0][1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.case("T23")
def test_one_that_a_host_does_not_see_is_never_replaced_by_an_older_one(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setattr(finding, "VISIBLE_WITHIN_S", 0.5)
    shutil.rmtree(folders[rank] / THIRD)
    for said in errors(folders):
        assert f"{THIRD}: rank {1 - rank} on " in said
        assert f"can read it, but rank {rank} on " in said


@pytest.mark.parametrize(("wanted_s", "timeout_s"), [(0.5, 30), (15, 30), (65, 30), (65, 1800)])
def test_no_rank_looks_so_long_that_the_others_give_up(wanted_s: float, timeout_s: float) -> None:
    peers = Peers.__new__(Peers)  # without a group: it is the rule that counts
    peers.limit = Limit(timeout_s, "timeouts.load")
    assert peers.patience_s(wanted_s) == min(wanted_s, timeout_s / 2)


def test_one_that_is_not_seen_is_told_before_the_others_give_up(folders: list[Path]) -> None:
    shutil.rmtree(folders[1] / THIRD)
    for said in errors(folders, timeout_s=8):
        assert "also not after 4 s" in said


def _probe(folders: Sequence[Path]) -> None:
    rank = int(os.environ["RANK"])
    probing.probe(
        Contract(rank, rank, 2, 1, folders[0], folders[rank], folders[0]),
        Peers(Limit(8, "timeouts.load")),
    )


def test_a_probe_that_is_not_seen_is_told_before_the_others_give_up(folders: list[Path]) -> None:
    for end in end_ranks(2, grouped, _probe, folders):
        assert end.error is not None
        assert "is not seen within 4 s by rank 1 on " in end.error


def _find_late(folders: Sequence[Path]) -> Found:
    """Rank 1 sees the newest only after it has looked once."""
    rank = int(os.environ["RANK"])
    look = finding.look

    def look_and_uncover(*arguments: object) -> finding.Look:
        seen = look(*arguments)  # type: ignore[arg-type]
        if rank == 1 and not (folders[1] / THIRD).exists():
            shutil.copytree(folders[0] / THIRD, folders[1] / THIRD)
        return seen

    finding.look = look_and_uncover  # type: ignore[assignment]  # of this process alone
    return _find(folders)


def test_one_that_comes_late_is_waited_for(folders: list[Path]) -> None:
    shutil.rmtree(folders[1] / THIRD)
    assert run_ranks(2, grouped, _find_late, folders) == [(THIRD, [])] * 2


def _find_as_nobody(folders: Sequence[Path]) -> Found:
    os.chdir(folders[0])  # the folders above are closed to others
    os.seteuid(65534)
    return _find([Path(), Path()])


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_disk_that_does_not_answer_is_no_reason_to_take_an_older_one(folders: list[Path]) -> None:
    (folders[0] / THIRD / "model.pt").chmod(0)
    for end in end_ranks(2, grouped, _find_as_nobody, folders):
        assert end.error is not None
        said = end.error.strip().splitlines()[-1]
        assert said.startswith(f"OSError: checkpoint {THIRD} cannot be read: rank 0 on ")
        assert "Permission denied" in said


@given(
    sizes=st.lists(st.integers(0, 1000), max_size=20), num_ranks=st.integers(1, 6)
)  # fmt: skip
def test_each_file_is_read_by_one_rank(sizes: list[int], num_ranks: int) -> None:
    files = {f"file-{i}": {"size_bytes": size, "sha256": ""} for i, size in enumerate(sizes)}
    shares = [finding.share_of(files, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    loads = [sum(file["size_bytes"] for file in share.values()) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


@given(number=st.integers(0, 30))
def test_long_lists_are_cut(number: int) -> None:
    told = some([f"host-{i}" for i in range(number)] * 2)
    assert told.count("host-") == min(number, NAMES_SHOWN)
    assert told.endswith(f" and {number - NAMES_SHOWN} more") == (number > NAMES_SHOWN)


def start_apart(run: Run, config_file: Path) -> int:
    """One rank, on a host that has a disk of its own at the path of the checkpoints."""
    host = os.environ["RANK"]
    os.environ.update(
        ORCHESTRATE_RUN_DIR=str(run.run_dir),
        ORCHESTRATE_ATTEMPT="1",
        ORCHESTRATE_CHECKPOINT_DIR=str(run.root / f"disk-{host}"),
        ORCHESTRATE_WORKDIR=str(run.workdir),
    )
    return main(["--config", str(config_file)])


@pytest.mark.case("T26")
def test_a_folder_that_is_not_shared_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "VISIBLE_WITHIN_S", 0.5)
    run = Run(tmp_path)
    run.attempt_dir().mkdir(parents=True)
    run.write_text()
    config_file = run.run_dir / "trainer.json"
    config_file.write_text(json.dumps(configuration()))
    ended = end_ranks(2, start_apart, run, config_file)
    assert [end.value for end in ended] == [1, 1]
    for error in run.errors():
        assert error["kind"] == "configuration"
        assert str(run.root / "disk-0") in error["message"]
        assert f"rank 1 on {socket.gethostname()} ({run.root / 'disk-1'})" in error["message"]
    assert list((run.root / "disk-0").iterdir()) == []
