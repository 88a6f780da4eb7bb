"""`orchestrate report` of run folders in which something is not what it should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.backends.base import Handle
from orchestrator.backends.runstore import LocalRunStore
from orchestrator.cli.history import read_run
from orchestrator.profiles import find_profiles
from orchestrator.report.compare import as_csv
from orchestrator.report.page import compare_page, report_page
from running import standing_run

Cli = Callable[..., tuple[int, str, str]]
FILES = ("metrics.jsonl", "goodput.jsonl", "plan.json", "supervisor.json", "job.yaml")
FOLDERS = ("attempts", "rendered", "checkpoints")
LEDGER = {"attempt": 1, "from": 0, "to": 9, "first_step": 1, "last_step": 9, "seconds": {"data": 9}}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return standing_run(tmp_path, "one")


def report(cli: Cli) -> str:
    code, out, err = cli("report", "one", "--out", "-")
    assert code == 0, err
    return out


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_pipe_that_nobody_writes_to_is_left_out(cli: Cli, run_dir: Path, name: str) -> None:
    (run_dir / name).unlink(missing_ok=True)
    os.mkfifo(run_dir / name)
    assert f"<li>{name}: neither a file nor a folder</li>" in report(cli)


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_link_out_of_the_run_folder_is_left_out(
    cli: Cli, run_dir: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "job.sh").write_text("export NOTE=not-for-you\n")
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(outside / "job.sh" if name in FILES else outside)
    page = report(cli)
    assert f"<li>{name}: a link that leads out of the run folder</li>" in page
    assert "not-for-you" not in page


def test_links_within_the_folder_and_to_it_are_followed(
    cli: Cli, run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / "real").mkdir()
    (run_dir / "real" / "job.sh").write_text("export NOTE=seen-it\n")
    (run_dir / "rendered").symlink_to("real")
    (tmp_path / "linked").symlink_to(run_dir)
    assert "seen-it" in report(cli)
    assert "seen-it" in cli("report", str(tmp_path / "linked"), "--out", "-")[1]


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_what_cannot_be_followed_is_left_out_and_said(cli: Cli, run_dir: Path, name: str) -> None:
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(name)
    assert f"<li>{name}: a link that leads nowhere</li>" in report(cli)


def test_a_folder_for_a_file_and_a_file_for_a_folder(cli: Cli, run_dir: Path) -> None:
    (run_dir / "goodput.jsonl").mkdir()
    (run_dir / "checkpoints").write_text("x")
    page = report(cli)
    assert "<li>goodput.jsonl: a folder</li>" in page
    assert "<li>checkpoints: a file</li>" in page


numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([10**400, 2**63, 1e-320, 1e308, float("nan"), float("inf"), -0.0])
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=3), below, max_size=2)
    ),
    max_leaves=4,
)


def mixed(draw: Any, value: Any) -> Any:
    """The value with anything in the place of some of its parts."""
    if draw(st.integers(0, 5)) == 0:
        return draw(anything)
    if isinstance(value, dict):
        return {key: mixed(draw, one) for key, one in value.items()}
    return [mixed(draw, one) for one in value] if isinstance(value, list) else value


SMALL: dict[str, Any] = {
    "plan.json": {"memory": {"total_bytes": 4e9}, "step_s": 1, "tokens_per_s": 5, "more": [1]},
    "receipt.json": {"version": 1, "backend": "local", "ids": {"job": 3}, "workdir": "/w"},
    "supervisor.json": {"state": "CANCELLED", "ended": [{"attempt": 1, "code": 75}]},
    "attempts/1/owner.json": {"host": "h"},
    "attempts/1/outcome.json": {"outcome": "drained"},
    "attempts/1/hangs/verdict.json": {"message": "rank 3"},
    "attempts/1/errors/rank-0.json": {"rank": 0, "host": "h", "message": "m"},
    "checkpoints/step-2/manifest.json": {"versions": {"torch": "2"}},
    "rendered/trainer.json": {
        "batch": {"micro": 2, "accumulation": 1},
        "model": {"context": 64},
        "num_ranks": 4,
        "parallelism": {"tensor": 2},
    },
    "job.yaml": {"name": "one", "train": {"steps": 4}},
}
LINES: dict[str, list[Any]] = {
    "metrics.jsonl": [
        {"event": "start", "step": 0, "attempt": 1, "time": 1, "world_size": 2, "hosts": ["a"]},
        {"step": 4, "losses": [3, 2], "tokens_per_s": 9, "step_s": 1, "peak_memory_bytes": 5},
        {"event": "network", "step": 4, "agrees": False, "faults": ["x"], "transports": {"t": 1}},
        {"event": "traffic", "step": 4, "collectives": [{"kind": "k", "payload_bytes": 5}]},
        {"event": "checkpoint", "step": 4, "time": 5, "seconds": 1, "path": "p"},
        {"event": "validation", "step": 4, "loss": 1, "time": 5},
    ],
    "goodput.jsonl": [LEDGER],
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_run_folder_has_a_page(tmp_path: Path, data: st.DataObject) -> None:
    for name, content in SMALL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(mixed(data.draw, content)))
    for name, lines in LINES.items():
        text = "".join(json.dumps(mixed(data.draw, line)) + "\n" for line in lines)
        (tmp_path / name).write_text(text)
    profile, store = find_profiles(None, {}, tmp_path).choose("local"), LocalRunStore(tmp_path)
    run = read_run(Handle("local", "one", tmp_path), store, profile, store)
    for text in (report_page(run), compare_page([run, run]), as_csv([run, run])):
        text.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("supervisor.json", '{"ended": [{"attempt": [1]}]}'),
        ("rendered/trainer.json", '{"num_ranks": 2, "parallelism": {"tensor": 1e-320}}'),
        ("rendered/trainer.json", '{"batch": {"micro": NaN}, "num_ranks": Infinity}'),
        ("plan.json", "[" * 900 + "]" * 900),
        ("job.yaml", "a: " + "[" * 90 + "]" * 90),
    ],
)
def test_figures_that_are_none_do_not_hinder(
    cli: Cli, run_dir: Path, name: str, content: str
) -> None:
    (run_dir / "attempts" / "1").mkdir(parents=True)
    (run_dir / name).parent.mkdir(exist_ok=True)
    (run_dir / name).write_text(content)
    assert "<h1>one</h1>" in report(cli)
