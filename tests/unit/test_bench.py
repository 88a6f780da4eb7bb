"""A bench without runs: names of cells, figures out of metrics, its folder, its tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bench.book import DONE, Book, Row
from orchestrator.bench.cells import Cell, all_cells, run_name, sweep_set
from orchestrator.bench.measured import Figures, error_percent, measured
from orchestrator.bench.tables import csv_text, markdown
from orchestrator.cli import orchestrate
from orchestrator.errors import UserError
from orchestrator.source.read import parse_value
from orchestrator.spec.job import MAX_NAME, name_problem

CELL = Cell("full_shard", 2, 4)
ROW = Row(
    CELL, "job-full-shard-n2-m4", "d1", DONE,
    measured=Figures(200, 0.5, 1000.0, 10.0, 20.0, 0.4, 0.6),
    planned=Figures(210, 0.4, 1250.0, 10.0, 20.0, fits=True),
)  # fmt: skip
FAILED = replace(ROW, cell=replace(CELL, micro=8), state="FAILED", reason="a|b", measured=Figures())

ASKED = {"job": "/a/job.yaml", "name": "job", "cluster": "local", "steps": 20}

names = st.from_regex(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", fullmatch=True)
cells = st.builds(
    Cell,
    st.sampled_from(["ddp", "full_shard", "shard_grad_op", "hybrid_shard"]),
    st.integers(1, 10_000),
    st.integers(1, 10**9),
    st.none() | st.integers(1, 10_000),
)


@settings(max_examples=40)
@given(names, cells, cells)
def test_each_cell_has_a_run_s_name_of_its_own(job: str, one: Cell, other: Cell) -> None:
    name = run_name(job, one.label)
    assert name_problem(name) is None
    assert name == f"{job}-{one.label}" or len(f"{job}-{one.label}") > MAX_NAME
    assert (run_name(job, other.label) == name) == (one == other)


def test_strategies_change_fastest_and_none_comes_twice() -> None:
    found = all_cells(["ddp", "full_shard", "ddp"], [1, 2], [4])
    assert [cell.label for cell in found] == [
        "ddp-n1-m4", "full-shard-n1-m4", "ddp-n2-m4", "full-shard-n2-m4",
    ]  # fmt: skip


def test_elements_of_an_array_are_what_set_reads() -> None:
    text = sweep_set([CELL, replace(CELL, strategy="ddp", layers=3)]).partition("=")[2]
    assert parse_value(text) == {
        "list": [
            {"parallelism.strategy": "full_shard", "train.batch.micro": 4},
            {"parallelism.strategy": "ddp", "train.batch.micro": 4, "train.model.layers": 3},
        ]
    }


def metrics(attempt: int, steps: list[float], *more: dict[str, Any]) -> bytes:
    lines: list[dict[str, Any]] = [
        {"step": n, "step_s": s, "peak_memory_bytes": n} for n, s in enumerate(steps, 1)
    ]
    return b"".join(
        json.dumps({"attempt": attempt, **line}).encode() + b"\n" for line in [*lines, *more]
    )


def test_figures_are_those_of_the_newest_attempt_after_its_warm_up() -> None:
    sums = {"kind": "all_reduce", "group_size": 4, "ranks_per_node": 2, "payload_bytes": 100.0}
    gathers = {"kind": "all_gather", "group_size": 2, "ranks_per_node": 2, "payload_bytes": 60.0}
    traffic = {"event": "traffic", "collectives": [sums, gathers]}
    use = {"event": "use", "peak_bytes": 99, "cpu_s": 0.5}
    text = metrics(1, [9.0] * 12) + metrics(2, [9.0] * 5 + [1.0, 2.0, 3.0], traffic, use)
    found = measured(text + b'{"step": 9, "st', 8)
    assert found == Figures(99, 2.0, 4.0, 30.0, 150.0, 1.5, 2.5, cpu_s=0.5)


def test_a_run_that_did_not_come_far_has_the_figures_it_has() -> None:
    assert measured(metrics(1, [1.0, 2.0]), 8) == Figures(peak_bytes=2)
    assert measured(b"", 8) == Figures()


@pytest.mark.parametrize(
    ("plan", "seen", "percent"), [(2.0, 1.0, 100.0), (0, 0, 0.0), (1, 0, None), (None, 1, None)]
)
def test_errors_are_shares_of_what_was_measured(
    plan: float | None, seen: float, percent: float | None
) -> None:
    assert error_percent(Figures(step_s=plan), Figures(step_s=seen), "step_s") == percent


def test_the_folder_keeps_rows_and_says_what_is_left(tmp_path: Path) -> None:
    book = Book.open(tmp_path / "b", ASKED)
    for row in (ROW, FAILED):
        book.add(row)
    again = Book.open(tmp_path / "b", ASKED)
    assert again.rows == {row.cell: row for row in (ROW, FAILED)}
    assert again.has(CELL, "d1", retry=True)
    assert not again.has(CELL, "d2", retry=False)
    assert again.has(FAILED.cell, "d1", retry=False)
    assert not again.has(FAILED.cell, "d1", retry=True)
    assert not again.has(replace(CELL, nodes=3), "d1", retry=False)


@pytest.mark.parametrize("key", ["job", "name", "cluster"])
def test_the_folder_of_another_job_is_left_alone(key: str, tmp_path: Path) -> None:
    Book.open(tmp_path, ASKED).add(ROW)
    Book.open(tmp_path, {**ASKED, "steps": 30})
    before = (tmp_path / "bench.json").read_text()
    with pytest.raises(UserError, match=f"the bench of another {key} .*give another folder"):
        Book.open(tmp_path, {**ASKED, key: "other"})
    assert (tmp_path / "bench.json").read_text() == before


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{}]}', '{"rows": [{"cell": 1}]}'])
def test_another_file_in_its_place_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(UserError, match=r"bench\.json: is no bench of this version"):
        Book.open(tmp_path, {})


def test_the_table_has_measurements_with_the_plan_s_errors() -> None:
    lines = markdown([ROW, FAILED]).splitlines()
    assert lines[2] == (
        "| full_shard | 2 | 4 | 0 MiB (+5 %) | 500.0 ms (-20 %) | 1000 (+25 %) "
        "| 0.00 MB (+0 %) | 0.00 MB (+0 %) | DONE |"
    )
    assert lines[3] == r"| full_shard | 2 | 8 | - | - | - | - | - | FAILED: a\|b |"
    cancelled = replace(FAILED, state="CANCELLED", reason="")
    assert markdown([cancelled]).endswith("| - | CANCELLED |\n")


def test_csv_has_all_figures() -> None:
    good, bad = csv.DictReader(io.StringIO(csv_text([ROW, FAILED])))
    assert (good["measured_step_s"], good["planned_step_s"]) == ("0.5", "0.4")
    assert (good["error_percent_step_s"], good["run"]) == ("-20.0", ROW.run)
    assert (bad["state"], bad["reason"], bad["measured_step_s"]) == ("FAILED", "a|b", "")


JOB = """\
name: small
train:
  model: {preset: nano}
  data: {synthetic: {samples: 64}}
  steps: 20
"""


def test_what_the_job_file_refuses_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    words = ["bench", "job.yaml", "--strategies", "hybrid_shard,dpp", "--json", "-o", "out"]
    result = CliRunner().invoke(orchestrate, words)
    assert result.exit_code == 1, result.output
    first, second = json.loads(result.stdout)
    assert (first["state"], second["state"]) == ("REFUSED", "REFUSED")
    assert "parallelism.strategy" in first["reason"]
    assert '"dpp"' in second["reason"]
    assert "| dpp | 1 |" in Path("out/bench.md").read_text()
    assert not Path("runs").exists()


def test_a_sweep_is_no_job_for_a_bench(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"{JOB}sweep: {{grid: {{train.seed: [1, 2]}}}}\n")
    result = CliRunner().invoke(orchestrate, ["bench", str(tmp_path / "job.yaml")])
    assert isinstance(result.exception, UserError)
    assert "sweep: a bench makes its own runs" in str(result.exception)


@pytest.mark.parametrize("words", [["--nodes", "1,x"], ["--micro-batch", "0"], ["--steps", "7"]])
def test_what_cannot_be_read_is_told(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    result = CliRunner().invoke(orchestrate, ["bench", str(tmp_path / "job.yaml"), *words])
    assert result.exit_code == 2
    assert words[0] in result.output
