"""What `orchestrate status` says about where a run's time went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from running import standing_run

Cli = Callable[..., tuple[int, str, str]]
LINES = """\
{"attempt": 1, "from": 0, "to": 10, "seconds": {"initialisation": 10}}
{"attempt": 1, "from": 10, "to": 90, "first_step": 1, "last_step": 8, "seconds": {"compute": 80}}
{"attempt": 2, "from": 95, "to": 100, "first_step": 8, "last_step": 8, "seconds": {"compute": 5}}
{"attempt": 2, "from": 100, "to": 1"""


def test_a_single_run_shows_where_its_time_went(cli: Cli, tmp_path: Path) -> None:
    (standing_run(tmp_path, "one") / "goodput.jsonl").write_text(LINES)
    code, out, _ = cli("status", "one")
    assert code == 0
    assert out.splitlines()[-1] == (
        "goodput 75.0 % of 1 min 40 s: compute 1 min 15 s, initialisation 10.0 s, repeated 10.0 s,"
        " recovery 5.0 s (2 attempts, 1 step made again)"
    )
    found = json.loads(cli("status", "one", "--json")[1])[0]["goodput"]
    assert found["share"] == 0.75
    assert found["seconds"]["repeated"] == 10
    assert (found["wall_s"], found["attempts"], found["steps_repeated"]) == (100, 2, 1)


@pytest.mark.parametrize("content", [None, "", "[]\n{"])
def test_a_run_without_a_ledger_has_no_goodput(
    cli: Cli, tmp_path: Path, content: str | None
) -> None:
    run_dir = standing_run(tmp_path, "one")
    if content is not None:
        (run_dir / "goodput.jsonl").write_text(content)
    code, out, _ = cli("status", "one")
    assert code == 0
    assert "goodput" not in out
    assert "goodput" not in json.loads(cli("status", "one", "--json")[1])[0]


def test_of_several_runs_no_ledger_is_read(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (standing_run(tmp_path, name) / "goodput.jsonl").write_text(LINES)
    code, out, _ = cli("status", "one", "two")
    assert code == 0
    assert "goodput" not in out


def test_a_ledger_that_cannot_be_read_hides_no_state(cli: Cli, tmp_path: Path) -> None:
    (standing_run(tmp_path, "one") / "goodput.jsonl").mkdir()
    code, out, err = cli("status", "one")
    assert code == 0
    assert "DONE" in out
    assert "goodput.jsonl: Is a directory" in err
