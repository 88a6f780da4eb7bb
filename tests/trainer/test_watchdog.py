"""A hang is ended, says which ranks the others wait for and where they are; what is slow is not."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hanging import NodeSide, note_pid

from runs import Run, configuration
from trainer import node, watchdog

RANKS = 3
LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "POLL_S", 0.5)
    monkeypatch.setattr(watchdog, "REPORTS_S", 8.0)
    monkeypatch.setattr(node, "STACKS_S", 1.0)


def hung(run: Run, **changes: Any) -> dict[str, Any]:
    """The verdict of a run that hangs; all ranks are gone."""
    config = configuration(num_ranks=RANKS, step_timeout_s=LIMIT_S, steps=20, **changes)
    helper = NodeSide(run, RANKS)
    helper.start()
    ended = run.start(config, listener=note_pid)
    helper.join()
    assert {end.exit_code for end in ended} <= {1, -9}
    (error,) = run.errors()
    assert error["kind"] == "hang"
    return error


def model(how: str, step: int = 3, rank: int = 1) -> dict[str, Any]:
    return {
        "model__factory": "hanging:build",
        "model__args": {"how": how, "step": step, "rank": rank},
    }


def texts(run: Run, pattern: str) -> list[str]:
    return [file.read_text() for file in sorted((run.attempt_dir() / "hangs").glob(pattern))]


def test_a_rank_that_hangs_is_missing_from_the_collective(tmp_path: Path) -> None:
    run = Run(tmp_path)
    error = hung(run, **model("forward"))
    first, *lines = error["message"].splitlines()
    print(error["message"])
    assert re.fullmatch(
        r"no progress for [5-9][.\d]* s in step 4: rank 1 \(\S+\) is missing from all_reduce of "
        r"\[\d+\] #\d+ of group 0 \(default_pg\), where ranks 0, 2 wait: "
        r"it is in phase step at .*hanging\.py:\d+ in _hang", first)  # fmt: skip
    assert error["rank"] == 1
    assert [line.split()[1] for line in lines] == ["1", "0", "2"]
    assert all("in backward" in text for text in texts(run, "rank-0000[02].stacks.txt"))
    flights = sorted((run.attempt_dir() / "hangs").glob("flight-*"))
    last = [pickle.loads(flight.read_bytes())["entries"][-1] for flight in flights]
    assert [entry["retired"] for entry in last] == [False, True, False]
    assert last[0]["collective_seq_id"] == last[1]["collective_seq_id"] + 1
