"""The program's side of the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.contract import ConfigurationError, Contract

ENVIRON = {
    "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "ORCHESTRATE_ATTEMPT": "2",
    "ORCHESTRATE_RUN_DIR": "/run", "ORCHESTRATE_CHECKPOINT_DIR": "/run/checkpoints",
    "ORCHESTRATE_WORKDIR": "/work",
}  # fmt: skip


def contract(run_dir: Path) -> Contract:
    return Contract.from_environ(ENVIRON | {"ORCHESTRATE_RUN_DIR": str(run_dir)})


def test_it_is_read_from_the_environment() -> None:
    read = Contract.from_environ(ENVIRON)
    assert (read.rank, read.local_rank, read.world_size, read.attempt) == (3, 1, 4, 2)
    assert read.drain_file == Path("/run/attempts/2/drain")


def test_all_that_is_missing_is_named() -> None:
    environ = {
        "RANK": "-1",
        "WORLD_SIZE": "0",
        "ORCHESTRATE_RUN_DIR": "run",
        "ORCHESTRATE_WORKDIR": "/",
    }
    with pytest.raises(ConfigurationError) as caught:
        Contract.from_environ(environ)
    for part in ("RANK is '-1'", "WORLD_SIZE is '0'", "LOCAL_RANK is not set", "RUN_DIR is 'run'",
                 "ORCHESTRATE_ATTEMPT is not set", "CHECKPOINT_DIR is not set"):  # fmt: skip
        assert part in str(caught.value)


def test_the_newest_attempt_has_the_highest_number(tmp_path: Path) -> None:
    two = contract(tmp_path)
    assert two.is_newest_attempt()
    for name in ("1", "2", "later"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert two.is_newest_attempt()
    (tmp_path / "attempts" / "10").mkdir()
    assert not two.is_newest_attempt()


def test_errors_and_outcome_are_whole_files(tmp_path: Path) -> None:
    three = contract(tmp_path)
    three.write_error("configuration", 'no "data"\n')
    error = json.loads((tmp_path / "attempts/2/errors/rank-00003.json").read_text())
    assert error.pop("host")
    assert error == {"version": 1, "kind": "configuration", "rank": 3, "message": 'no "data"\n'}
    three.write_outcome("drained", 5)
    outcome = json.loads((tmp_path / "attempts/2/outcome.json").read_text())
    assert outcome == {"version": 1, "outcome": "drained", "step": 5}
    assert not list(tmp_path.rglob(".*"))


def test_done(tmp_path: Path) -> None:
    three = contract(tmp_path)
    assert not three.is_done()
    three.write_done(9)
    assert three.is_done()
    assert three.done_step() == 9
    (tmp_path / "DONE").write_text("")
    assert three.done_step() == 0


def test_a_working_folder_that_is_not_there(tmp_path: Path) -> None:
    lost = Contract.from_environ(ENVIRON | {"ORCHESTRATE_WORKDIR": str(tmp_path / "gone")})
    with pytest.raises(ConfigurationError, match="gone is no folder"):
        lost.enter_workdir()
