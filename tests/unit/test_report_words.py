"""What tiles, tables and CSV say of runs that are no plain ones."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from orchestrator.report.axis import NUMBERS, words
from orchestrator.report.clean import Mask
from orchestrator.report.compare import apart, as_csv, different_keys
from orchestrator.report.files import Run
from orchestrator.report.measured import caveats, collectives, tiles
from orchestrator.report.page import compare_page, report_page
from orchestrator.report.told import Told

START = {"event": "start", "step": 0, "attempt": 1, "steps": 40}


def run_of(*entries: dict[str, Any], name: str = "one", **more: Any) -> Run:
    told = Told()
    for entry in entries:
        told.feed(json.dumps(entry))
    return Run(name, told, **more)


def loss_tile(*entries: dict[str, Any]) -> tuple[str, ...]:
    return next(tile[1:] for tile in tiles(run_of(START, *entries)) if tile[0] == "Training loss")


def test_a_loss_that_is_no_number_any_more_is_told() -> None:
    good = {"step": 2, "loss": 3.0, "losses": [4.0, 3.0]}
    bad = {"step": 4, "loss": None, "losses": [None, None]}
    again = {"step": 6, "loss": 2.0, "losses": [None, 2.0]}
    assert loss_tile(good) == ("3", "lowest 3")
    since = "the last that was finite: not so since step 3; lowest 3"
    assert loss_tile(good, bad) == ("3", since)
    assert loss_tile(good, bad, {"step": 5, "loss": float("nan")}) == ("3", since)
    assert loss_tile(good, bad, again) == ("2", "lowest 2")
    assert loss_tile(good, bad, {**START, "attempt": 2, "step": 2}) == ("3", "lowest 3")
    assert loss_tile(bad) == ("-", "not finite since step 3")


def test_steps_that_were_left_out_count_as_steps() -> None:
    run = run_of(START, *({"event": "skipped", "step": step, "total": step} for step in (1, 2)))
    assert tiles(run)[0] == ("Step", "2", "of 40")
    assert loss_tile({"event": "skipped", "step": 2}) == ("-", "not finite since step 2")


def test_collectives_planned_and_counted_stand_side_by_side() -> None:
    group = {"kind": "all_gather", "group_size": 2, "ranks_per_node": 2}
    plan = {"traffic": {"transfers": [
        {**group, "count": 3, "payload_bytes": 482304},
        {**group, "count": 2, "payload_bytes": 399872},
        {**group, "kind": "broadcast", "count": 1, "payload_bytes": 4}]}}  # fmt: skip
    seen = {"event": "traffic", "step": 3,
            "collectives": [{**group, "calls": 5.0, "payload_bytes": 882176.0}]}  # fmt: skip
    run = run_of(START, seen, plan=plan)
    assert collectives(run) == [
        ("all_gather", "2", "2", "5", "5", "882.2 kB", "882.2 kB"),
        ("broadcast", "2", "2", "1", "-", "4 B", "-"),
    ]
    assert "all_gather" in report_page(run)


def test_what_a_ratio_on_a_cpu_is_worth_is_said() -> None:
    plan = {"memory": {"total_bytes": 7063920}}
    run = run_of(START, {"step": 1, "peak_memory_bytes": 4e8}, plan=plan, trainer={"device": "cpu"})
    assert "This ran on a CPU" in caveats(run)[0]
    assert caveats(run)[0] in report_page(run)
    assert "CPU" not in report_page(run_of(START, plan=plan, trainer={"device": "cuda"}))


def test_runs_of_one_name_are_told_apart() -> None:
    runs = apart([run_of(START), run_of(START), run_of(START, name="two"), run_of(START)])
    assert [run.name for run in runs] == ["one", "one #2", "two", "one #3"]
    assert "one #3" in compare_page(runs)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=cmd|'/c x'!A1", "'=cmd|'/c x'!A1"),
        ("+1+2", "'+1+2"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-1.5e-3", "-1.5e-3"),
        ("a\u202eb\x1b\tc", "a?b? c"),
    ],
)
def test_a_cell_is_no_formula_and_steers_nothing(value: str, cell: str) -> None:
    runs = [run_of(START, spec={"a": value}), run_of(START, spec={"a": "x"}, name=value)]
    head, first, second = csv.reader(io.StringIO(as_csv(runs)))
    assert first[-1] == cell
    assert second[0] == cell
    assert head[-1] == "a"


def test_keys_that_say_nothing_of_the_run_are_no_rows() -> None:
    one = run_of(START, spec={"env": {}, "sweep": {"list": []}, "checkpoint": {"every": 20}},
                 trainer={"checkpoint": {"every_steps": 20}})  # fmt: skip
    two = run_of(START, spec={"env": {"A": "x"}, "sweep": None, "checkpoint": {"every": 50}},
                 trainer={"checkpoint": {"every_steps": 50}})  # fmt: skip
    assert different_keys([one, two]) == [("checkpoint.every", "20", "50"), ("env.A", "", "x")]


def test_a_job_file_without_its_defaults_differs_in_its_own_keys_alone() -> None:
    one = run_of(START, spec={"a": 1, "b": 2, "c": 3})
    two = run_of(START, spec={"a": 1, "b": 4}, has_defaults=False)
    assert different_keys([one, two]) == [("b", "2", "4")]


def test_a_column_has_as_many_digits_everywhere() -> None:
    given = (13000, 9950, 150, 0)
    assert [words(v, NUMBERS, 3, even=True) for v in given] == ["13.0 k", "9.95 k", "150", "0"]


def test_the_name_of_an_option_tells_of_the_value_after_it() -> None:
    found = Mask().data({"args": ["--api-key", "tall grass", "--steps", "4", "--token=leaf"]})
    assert found == {"args": ["--api-key", "***", "--steps", "4", "--token=***"]}
