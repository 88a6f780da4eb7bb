"""spec: when a checkpoint is due, `async` in spite of its name, and what is said of mistakes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Fault, FaultsError
from orchestrator.source import parse_document
from orchestrator.spec import ResolvedJob, children, find_field, json_schema, resolve_job
from orchestrator.spec.train import MAX_STEPS
from orchestrator.units import format_duration, parse_duration

GOOD = """\
name: demo
train:
  model: {preset: nano}
  data: {python_docs: true}
  steps: 10
"""


def job(added: str, *sets: str) -> ResolvedJob:
    return resolve_job(parse_document(f"{GOOD}{added}\n".encode(), "job.yaml"), sets=sets)


def only(added: str, *sets: str) -> Fault:
    with pytest.raises(FaultsError) as caught:
        job(added, *sets)
    (fault,) = caught.value.faults
    return fault


# Lines added below GOOD, so that the first of them is line 6; place, message, fix.
FORMS = "a number of steps such as 100, a duration such as 15m, or auto"
FAULTS = [
    ("every: 0", "6:21", "0 is no number of steps from 1 to 1000000000", FORMS),
    ("every: -5", "6:21", "-5 is no number of steps", FORMS),
    ("every: 1000000001", "6:21", "1000000001 is no number of steps", FORMS),
    ("every: 100.0", "6:21", "a whole number of steps belongs here, not 100.0", "write 100"),
    ("every: 1.5", "6:21", "a number of steps, a duration or auto belongs here", FORMS),
    ("every: .inf", "6:21", "a number of steps, a duration or auto belongs here", FORMS),
    ("every: true", "6:21", "a number of steps, a duration or auto belongs here", FORMS),
    ("every: null", "6:21", "a number of steps, a duration or auto belongs here", FORMS),
    ("every: [100]", "6:21", "a number of steps, a duration or auto belongs here", FORMS),
    ("every: {steps: 100}", "6:21", "a number of steps, a duration or auto belongs", FORMS),
    ("every: ''", "6:21", '"" is no number of steps, no duration and not auto', FORMS),
    ("every: soon", "6:21", '"soon" is no number of steps, no duration', FORMS),
    ("every: Auto", "6:21", '"Auto" is no number of steps', 'did you mean "auto"?'),
    ("every: '100'", "6:21", 'whole number of steps belongs here, not "100"', "write 100, or"),
    ("every: 100 steps", "6:21", 'not "100 steps"', "write 100, or a duration such as 15m"),
    ("every: 1_000", "6:21", 'not "1_000"', "write 1000, or a duration"),
    ("every: 15 minutes", "6:21", '"15 minutes" is not a duration', "write 15m"),
    ("every: 0.5h", "6:21", '"0.5h" is not a duration', "write 30m"),
    ("every: '10:00'", "6:21", "hours:minutes or minutes:seconds", "10h00m or 10m00s"),
    ("every: 0s", "6:21", "no time at all", "at least 1s"),
    ("every: 4000d", "6:21", "more than ten years", "write it as"),
    ("every: '${T:-15m}'", "6:21", "free texts only", "--set checkpoint.every=..."),
    ("evry: 100", "6:14", "unknown key", '"every"'),
    ("save_steps: 100", "6:14", "unknown key", "did you mean checkpoint.every?"),
    ("asynchronous: true", "6:14", "unknown key", "did you mean checkpoint.async?"),
    ("asynch: true", "6:14", "unknown key", '"async"'),
    ("async: yes", "6:21", 'true or false belongs here, not "yes"', "write true"),
    ("async: null", "6:21", "true or false belongs here, not nothing", ""),
    ("format: shard", "6:22", "none of auto, full, sharded, both", '"sharded"'),
    ("on_failure: ignore", "6:26", "none of stop, continue", ""),
    ("on_failure: contine", "6:26", "none of stop, continue", '"continue"'),
    ("keep: 0", "6:20", "0 is not at least 1", "from 1"),
]


@pytest.mark.parametrize(("added", "where", "message", "fix"), FAULTS)
def test_one_fault_at_its_place(added: str, where: str, message: str, fix: str) -> None:
    fault = only(f"checkpoint: {{{added}}}")
    assert fault.where() == f"job.yaml:{where}"
    assert message in fault.message
    assert fix in fault.fix


def test_the_limit_of_one_checkpoint_is_a_duration() -> None:
    assert job("").spec.timeouts.checkpoint == 1800
    assert job("timeouts: {checkpoint: 2h}").spec.timeouts.checkpoint == 7200
    fault = only("timeouts: {checkpoint: 90}")
    assert (fault.where(), fault.fix) == ("job.yaml:6:24", "write 90s, 90m or 90h")


def test_numbers_of_samples_are_written_where_they_are_asked_for() -> None:
    assert not job("").spec.train.logging.samples
    assert job("", "train.logging.samples=true").spec.train.logging.samples


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("100", 100),
        ("15m", "15m"),
        ("900s", "15m"),
        ("12:00:00", "12h"),
        ("auto", "auto"),
        ("' auto '", "auto"),
    ],
)
def test_the_forms_of_every(written: str, read: int | str) -> None:
    assert job(f"checkpoint: {{every: {written}}}").spec.checkpoint.every == read


@given(st.integers(1, MAX_STEPS) | st.integers(1, 10**8).map(format_duration))
def test_what_every_holds_is_read_as_itself(every: int | str) -> None:
    read = job("", f"checkpoint.every={every}").spec.checkpoint.every
    assert read == every
    if isinstance(read, str):
        assert format_duration(parse_duration(read)) == read


def test_async_is_the_name_everywhere() -> None:
    assert find_field("checkpoint.async").supported
    assert "async" in children("checkpoint")
    resolved = job("checkpoint: {async: true}")
    assert resolved.spec.checkpoint.asynchronous
    assert resolved.origins["checkpoint", "async"].label == "job.yaml:6:14"
    assert not [path for path in resolved.origins if "asynchronous" in path]
    over = job("checkpoint: {async: true}", "checkpoint.async=false")
    assert not over.spec.checkpoint.asynchronous
    assert over.origins["checkpoint", "async"].label == "--set"


def test_async_and_every_may_differ_within_a_sweep() -> None:
    grid = "{checkpoint.async: [false, true], checkpoint.every: [5, 15m, auto]}"
    elements = job(f"sweep: {{grid: {grid}}}").elements
    saved = [(e.spec.checkpoint.asynchronous, e.spec.checkpoint.every) for e in elements]
    assert saved == [(a, every) for a in (False, True) for every in (5, "15m", "auto")]
    fault = only("sweep: {grid: {checkpoint.every: [15m, 900s]}}")
    assert "element 1 (checkpoint.every=900s) is the same run as element 0" in fault.message
    fault = only("sweep: {grid: {checkpoint.async: [true, maybe]}}")
    assert (fault.where(), fault.key) == ("job.yaml:6:41", "sweep.grid.checkpoint.async[1]")


@pytest.mark.parametrize(
    ("checkpoint", "good"),
    [
        ({"every": 1}, True),
        ({"every": "15m"}, True),
        ({"every": "1-12:00:00"}, True),
        ({"every": "auto"}, True),
        ({"async": True, "format": "both", "on_failure": "continue"}, True),
        ({"every": 0}, False),
        ({"every": 1.5}, False),
        ({"every": "100"}, False),
        ({"every": "soon"}, False),
        ({"every": None}, False),
        ({"asynchronous": True}, False),
        ({"async": "yes"}, False),
        ({"format": "half"}, False),
    ],
)
def test_the_schema_takes_what_the_models_take(checkpoint: dict[str, Any], good: bool) -> None:
    data = parse_document(GOOD.encode(), "f").data | {"checkpoint": checkpoint}
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(data) == good
    try:
        resolve_job(parse_document(json.dumps(data).encode(), "f"))
    except FaultsError:
        assert not good
    else:
        assert good
