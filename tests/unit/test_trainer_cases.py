"""Public failures of other trainers: each of those that a release answers has a marked test."""

from __future__ import annotations

import re

import pytest
from test_cases import TESTS, marks

LIST = TESTS.parent.parent / "shared" / "cases" / "trainer-cases.md"
CASES = {
    "T01": "accumulation under FSDP differs from the whole batch",
    "T02": "accumulation without sums keeps whole gradients",
    "T03": "FSDP1 with CPU offload and accumulation loses gradients",
    "T07": "ranks with unequal numbers of batches hang",
    "T08": "means of means where token counts differ",
    "T09": "a parameter is ready twice under recomputation",
    "T10": "a gradient norm that is local, or counts twice",
    "T11": "bf16 gradients are summed in bf16",
    "T12": "the optimizer's state under FSDP is not restored",
    "T13": "the schedule steps once per rank, or twice after a resume",
    "T14": "rank 0's random state is given to all ranks",
    "T27": "initialisation without memory breaks ties",
    "T28": "frozen parameters break sharding",
    "T29": "a step of NaN poisons the weights and pushes the good checkpoints out",
    "T30": "validation on rank 0 alone hangs",
}
"""What  as trainers' faults; the others are parts of checkpoints and launching."""


def test_each_case_has_a_test() -> None:
    found = {number for path in TESTS.rglob("test_*.py") for number in marks(path)}
    assert set(CASES) <= found


def test_the_cases_are_on_the_list() -> None:
    if not LIST.exists():
        pytest.skip(f"the list of public failures is not here: {LIST.name}")
    assert set(CASES) <= set(re.findall(r"^\| (T\d\d)", LIST.read_text("utf-8"), re.MULTILINE))
